package ops

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// auditIDs makes the IDs of audit rows. They are UUIDs of version 7 from the same clock as the
// rows' times, so a time corresponds to a place among the IDs. Each ID is later than the one before
// it, even if the clock goes back.
type auditIDs struct {
	mu   sync.Mutex
	last int64
}

func (a *auditIDs) next(now time.Time) (string, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("make an ID: %w", err)
	}
	a.mu.Lock()
	a.last = max(a.last+1, placeInTime(now))
	at := a.last
	a.mu.Unlock()
	putTime(&id, at)
	return id.String(), nil
}

// placeInTime returns t in 4,096ths of a millisecond since 1970, limited to what a UUID of version
// 7 can hold: the year 10889.
func placeInTime(t time.Time) int64 {
	if t.Before(time.UnixMilli(0)) {
		return 0
	}
	return t.UnixMilli()<<12 | int64(t.Nanosecond()%int(time.Millisecond))<<12/int64(time.Millisecond)
}

func putTime(id *uuid.UUID, at int64) {
	binary.BigEndian.PutUint64(id[:8], uint64(at>>12)<<16|7<<12|uint64(at&0xfff))
	id[8] = id[8]&0x3f | 0x80
}

// auditMargin is how far an audit row's ID may be from its time. IDs ascend even if the clock goes
// back, and other programs may use another clock.
const auditMargin = time.Hour

// auditFrom returns an ID before those of all audit rows since t.
func auditFrom(t time.Time) string {
	id := uuid.Nil
	if !t.IsZero() {
		putTime(&id, placeInTime(t.Add(-auditMargin)))
	}
	return id.String()
}

// auditBefore returns an ID after those of all audit rows until t.
func auditBefore(t time.Time) string {
	if t.IsZero() {
		return lastID
	}
	id := uuid.Max
	putTime(&id, placeInTime(t.Add(auditMargin)))
	return id.String()
}
