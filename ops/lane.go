package ops

import (
	"context"
	"database/sql"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// laneCap is how many statuses ahead in a lane are counted.
const laneCap = 1000

// These use the index on lanes and return the statuses of one lane that are poisoned or not ($3),
// in the order of acceptance.
const (
	laneAhead = `
SELECT count(*) FROM (
	SELECT id FROM {statuses}
	WHERE lane_handler = $1 AND lane_key = $2 AND is_poisoned = $3 AND completed_at IS NULL AND (sequence, id) < ($4, $5)
	ORDER BY sequence, id LIMIT $6
) a`

	laneHead = `
SELECT id, message_id, COALESCE((SELECT namespace FROM {messages} WHERE number = message_number), ''), sequence, is_poisoned, processing_started_at IS NOT NULL
FROM {statuses}
WHERE lane_handler = $1 AND lane_key = $2 AND is_poisoned = $3 AND completed_at IS NULL
ORDER BY sequence, id LIMIT 1`
)

// sequenceOf uses the index on open statuses.
const sequenceOf = `SELECT sequence FROM {statuses} WHERE id = $1 AND ` + base.OpenSQL

// placeInLane counts what is before a status in its own lane. After a rename, and while older rows
// exist, a lane has two names, see contract 5.12; only the status's name counts here.
func (o *Ops) placeInLane(ctx context.Context, r row) (*LanePlace, error) {
	sequences, err := readRows(ctx, o, sequenceOf, store.Value[int64], r.ID)
	if err != nil || len(sequences) == 0 {
		return nil, err
	}
	place := &LanePlace{HeadMessageID: r.MessageID, HeadNamespace: r.Namespace, HeadStatusID: r.ID, HeadState: r.State}
	head := sequences[0]
	for _, poisoned := range []bool{false, true} {
		counts, err := readRows(ctx, o, laneAhead, store.Value[int64], r.lane.Handler, r.lane.Key, poisoned, sequences[0],
			r.ID,
			laneCap+1)
		if err != nil {
			return nil, err
		}
		place.Ahead.N += counts[0]
		heads, err := readRows(ctx, o, laneHead, func(rows *sql.Rows, h *laneFirst) error {
			return rows.Scan(&h.id, &h.messageID, &h.namespace, &h.sequence, &h.poisoned, &h.processing)
		}, r.lane.Handler, r.lane.Key, poisoned)
		if err != nil {
			return nil, err
		}
		if len(heads) == 1 && heads[0].sequence < head {
			h := heads[0]
			head, place.HeadMessageID, place.HeadNamespace = h.sequence, h.messageID, h.namespace
			place.HeadStatusID, place.HeadState = h.id, h.state()
		}
	}
	if place.Ahead.N > laneCap {
		place.Ahead = Count{N: laneCap, Capped: true}
	}
	return place, nil
}

type laneFirst struct {
	id, messageID        string
	namespace            string
	sequence             int64
	poisoned, processing bool
}

func (h laneFirst) state() State {
	switch {
	case h.poisoned:
		return StatePoisoned
	case h.processing:
		return StateProcessing
	default:
		return StatePending
	}
}

// changed is a status that an action has ended or made due.
type changed struct {
	id, messageID, handlerKey string
	lane                      *store.Lane
}

// scanChanged scans {changed}.
func scanChanged(rows *sql.Rows, c *changed) error {
	var laneHandler, laneKey sql.NullInt64
	err := rows.Scan(&c.id, &c.messageID, &c.handlerKey, &laneHandler, &laneKey)
	if laneHandler.Valid && laneKey.Valid {
		c.lane = &store.Lane{Handler: laneHandler.Int64, Key: laneKey.Int64}
	}
	return err
}

// wakeAfter advances the lanes of what has changed, after the commit, and wakes the handlers
// concerned, here and in other processes. This only saves time: sweeps check every lane within a
// minute, and polling finds what is due. So a failure here does not make the action fail.
func (o *Ops) wakeAfter(ctx context.Context, madeDue bool, rows []changed) {
	ctx, cancel := o.within(context.WithoutCancel(ctx))
	defer cancel()
	release, err := o.connect(ctx)
	if err != nil {
		return
	}
	defer release()
	var keys []string
	var turns []store.LaneRequest
	seen := map[store.Lane]bool{}
	for _, c := range rows {
		if madeDue {
			keys = append(keys, c.handlerKey)
		}
		if c.lane != nil && !seen[*c.lane] {
			seen[*c.lane] = true
			// Only the application knows the lane's other names, after a rename, and whether
			// poisoned rows are skipped. Releasing a row is harmless under any rule, because claims
			// check the lane again.
			turns = append(turns, store.LaneRule{SkipPoisoned: true}.Request(*c.lane))
		}
	}
	if freed, err := o.store.AdvanceLanes(ctx, turns, o.opts.Clock.Now()); err == nil {
		keys = append(keys, freed...)
	}
	if keys = distinct(keys); len(keys) == 0 {
		return
	}
	if o.opts.Live != nil {
		o.opts.Live.Wake(keys...)
	}
	_ = o.store.Notify(ctx, keys...)
}
