package ops

import (
	"context"

	"github.com/gorm-inbox/inbox/internal/store"
)

// laneCap is how many statuses ahead in a lane are counted.
const laneCap = 1000

// placeInLane counts the rows before a status in its lane. After a rename, and while older rows exist, a lane has two
// names, see contract 5.12; only the status's name counts here.
func (o messageViews) placeInLane(ctx context.Context, r row) (*LanePlace, error) {
	sequence, err := o.store.SequenceOf(ctx, o.pool(ctx), r.ID)
	if err != nil || sequence == nil {
		return nil, err
	}
	at := store.LanePlace{Sequence: *sequence, StatusID: r.ID}
	place := &LanePlace{HeadMessageID: r.MessageID, HeadNamespace: r.Namespace, HeadStatusID: r.ID, HeadState: r.State}
	first := at.Sequence
	for _, poisoned := range []bool{false, true} {
		ahead, err := o.store.LaneAhead(ctx, o.pool(ctx), *r.lane, poisoned, at, laneCap+1)
		if err != nil {
			return nil, err
		}
		place.Ahead.N += ahead
		head, err := o.store.LaneHead(ctx, o.pool(ctx), *r.lane, poisoned)
		if err != nil {
			return nil, err
		}
		if head != nil && head.Sequence < first {
			first, place.HeadMessageID, place.HeadNamespace = head.Sequence, head.MessageID, head.Namespace
			place.HeadStatusID, place.HeadState = head.StatusID, headState(head)
		}
	}
	if place.Ahead.N > laneCap {
		place.Ahead = Count{N: laneCap, Capped: true}
	}
	return place, nil
}

func headState(h *store.LaneHead) State {
	switch {
	case h.Poisoned:
		return StatePoisoned
	case h.Processing:
		return StateProcessing
	default:
		return StatePending
	}
}

// wakeAfter advances the lanes of changed statuses, after the commit, and wakes the handlers concerned, here and in
// other processes. This only saves time: sweeps check every lane within a minute, and polling finds due statuses. So a
// failure here does not make the action fail.
func (o *access) wakeAfter(ctx context.Context, madeDue bool, rows []store.ChangedStatus) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.opts.StatementTimeout)
	defer cancel()
	var keys []string
	var turns []store.LaneRequest
	seen := map[store.Lane]bool{}
	for _, c := range rows {
		if madeDue {
			keys = append(keys, c.HandlerKey)
		}
		if c.Lane != nil && !seen[*c.Lane] {
			seen[*c.Lane] = true
			// Only the application knows the lane's other names, after a rename, and whether poisoned rows are skipped.
			// Releasing a row is harmless under any rule, because claims check the lane again.
			turns = append(turns, store.LaneRule{SkipPoisoned: true}.Request(*c.Lane))
		}
	}
	_ = o.connected(ctx, func(ctx context.Context) error {
		if freed, err := o.store.AdvanceLanes(ctx, turns, o.opts.Clock.Now()); err == nil {
			keys = append(keys, freed...)
		}
		if keys = distinct(keys); len(keys) == 0 {
			return nil
		}
		if o.opts.Live != nil {
			o.opts.Live.Wake(keys...)
		}
		return o.store.Notify(ctx, keys...)
	})
}
