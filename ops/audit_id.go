package ops

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// auditIDs makes the IDs of audit rows: UUIDs of version 7 by the clock that the
// rows' times come from, so that a time is a place among the IDs. Each is later
// than the one before it, also where the clock goes back.
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

// placeInTime counts 4,096ths of milliseconds since 1970, up to what a UUID of
// version 7 holds: the year 10889.
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

// auditMargin is how far an audit row's ID may be from its time: IDs ascend where
// the clock goes back, and other programs may have made them by another clock.
const auditMargin = time.Hour

// auditFrom is an ID before those of all audit rows since t.
func auditFrom(t time.Time) string {
	id := uuid.Nil
	if !t.IsZero() {
		putTime(&id, placeInTime(t.Add(-auditMargin)))
	}
	return id.String()
}

// auditBefore is an ID behind those of all audit rows until t.
func auditBefore(t time.Time) string {
	if t.IsZero() {
		return lastID
	}
	id := uuid.Max
	putTime(&id, placeInTime(t.Add(auditMargin)))
	return id.String()
}
