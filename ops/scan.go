package ops

import (
	"cmp"
	"context"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/redact"
)

// place is where a list continues: after the last row that was read.
type place struct {
	// Stage is the part of the list, see filter.stages.
	Stage int `json:"s,omitempty"`
	store.ListPlace
}

// endOfTime is after every row. Lists that start with the newest row begin there.
var endOfTime = time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)

const (
	lastTime = "9999-12-31 23:59:59.999999+00:00"
	lastID   = "ffffffff-ffff-ffff-ffff-ffffffffffff"
)

// firstStep is how many rows the first statement of a stage reads for a page: as many as needed if every row matches. A
// message has several statuses, so fewer messages are needed.
func firstStep(st store.Stage, limit int) int {
	if st.Keyed() {
		return limit + 1
	}
	return min(limit+1, 100)
}

// start returns a place before the first row of a stage. Messages have positive numbers.
func (o statusSearch) start(f *filter, st store.Stage) place {
	if st.Keyed() {
		return place{ListPlace: store.ListPlace{At: lastTime, ID: lastID}}
	}
	_, before := o.roughly(f.From, f.To)
	return place{ListPlace: store.ListPlace{At: store.ListTime(before)}}
}

// hit is the part of a status that lists and actions need to select it. Its last error is redacted.
type hit struct {
	store.StatusHit
	stage int // its number, see filter.stages
}

func (h hit) place() place { return place{h.stage, h.Place} }

// scanned is the result of one statement of a list.
type scanned struct {
	rows   []hit
	looked int
	// edge is the place up to which everything has been read; nil if that is the end.
	edge *place
	// keys are the handler keys that may have rows after the edge.
	keys []string
}

// scan reads a part of a stage, the number-th.
func (o statusSearch) scan(ctx context.Context, f *filter, st store.Stage, number int, keys []string, after place,
	depth, limit int) (scanned, error) {
	found, err := o.store.ScanStatuses(ctx, o.largePool(ctx), o.scanOf(f, st, keys, after, depth, limit))
	if err != nil {
		return scanned{}, err
	}
	read := make([]hit, len(found))
	for i, h := range found {
		h.LastError = o.redactor.Error(redact.Value{MessageID: h.MessageID, Type: h.Type, HandlerKey: h.HandlerKey},
			h.LastError)
		read[i] = hit{h, number}
	}
	if st.Keyed() {
		return scannedOfKeys(read, depth), nil
	}
	var s scanned
	for _, h := range read {
		if !h.Closes {
			s.rows = append(s.rows, h)
			continue
		}
		s.looked = max(h.Depth, h.Statuses)
		if h.Depth == depth {
			// Continue after the message, with all of its statuses.
			s.edge = &place{number, store.ListPlace{At: h.Place.At, Number: h.Place.Number - 1}}
		}
	}
	return s, nil
}

// counts reports whether a statement can count the matching rows of a stage by itself.
func (o statusSearch) counts(f *filter, st store.Stage) bool {
	exact := o.store.ExactTimes() || f.From.IsZero() && f.To.IsZero() // see roughly
	return st.Keyed() && exact && !o.judges(f)
}

// scannedOfKeys finds the edge of all handler keys: the latest of the places at which a key had more rows than were
// read. The rows that were read after it are read again.
func scannedOfKeys(read []hit, depth int) (s scanned) {
	for _, h := range read {
		if h.Closes {
			s.looked += h.Depth
			if at := h.place(); h.Depth == depth && (s.edge == nil || newer(at, *s.edge) < 0) {
				s.edge = &at
			}
		}
	}
	for _, h := range read {
		behind := s.edge != nil && newer(h.place(), *s.edge) > 0
		switch {
		case !h.Closes && !behind:
			s.rows = append(s.rows, h)
		case h.Closes && (behind || h.Depth == depth):
			s.keys = append(s.keys, h.HandlerKey)
		}
	}
	return s
}

// newer sorts the places of a stage in the order of its list.
func newer(a, b place) int { return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(b.ID, a.ID)) }

// scanOf returns what a statement is to read.
func (o statusSearch) scanOf(f *filter, st store.Stage, keys []string, after place, depth, limit int) store.StatusScan {
	after.At = cmp.Or(after.At, lastTime)
	oldest, before := o.roughly(f.From, f.To)
	return store.StatusScan{Stage: st, HandlerKeys: keys, After: after.ListPlace, Depth: depth, Limit: limit,
		PerMessage: lookLimit, States: f.states, Fingerprint: f.Fingerprint, Type: f.Type, ErrorText: o.sqlText(f.text),
		From: oldest, To: before, MessageID: f.MessageID, Namespace: f.Namespace, ReadsErrors: o.judges(f),
		ReadsMessage: f.text != "" && o.redacts(), ComparesMessage: f.comparesMessage()}
}
