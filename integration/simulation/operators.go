package simulation

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/ops"
)

// action is what an operator does. It returns what the audit must have of it.
type action func(ctx context.Context, o *ops.Ops, actor ops.Actor) (audited, error)

// audited are audit rows: at least so many, none if it is 0, and in them so many statuses.
type audited struct{ rows, statuses int64 }

// single is for an action in one transaction.
func single(err error) (audited, error) {
	if err != nil {
		return audited{}, err
	}
	return audited{rows: 1}, nil
}

// bulk is for an action in chunks, which also has a row for its end.
func bulk(result ops.BulkResult, err error) (audited, error) { return audited{1, result.Done}, err }

// operate carries out an action in the background.
func (w *world) operate(what string, in *process, do action) {
	w.working.Go(func() { w.act(what, in, do) })
}

// act carries out an action in a process, or if that is nil in a program with only the tables, whose calls do not fail.
// It judges the audit.
func (w *world) act(what string, in *process, do action) {
	ctx, o, err := context.Background(), w.ops, error(nil)
	if in != nil {
		ctx = in.life
		o, err = in.inbox.Ops()
	}
	if err != nil {
		w.breaks("an operator: %v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	actor := ops.Actor(fmt.Sprintf("ada %d", w.actors.Add(1)))
	want, err := do(ctx, o, actor)
	if !w.calm.Load() || err != nil || want.statuses > 0 {
		w.note("operator %s: %s: %+v: %v", actor, what, want, err)
	}
	var found struct{ Entries, Statuses int64 }
	w.query(&found, `SELECT count(*) AS entries, COALESCE(sum(json_array_length(detail, '$.status_ids')), 0) AS statuses
		FROM inbox_audit WHERE actor = ?`, actor)
	if (in == nil || err == nil) && !errors.Is(err, ops.ErrNotAudited) && // else the response was perhaps lost
		(found.Entries < want.rows || want.rows == 0 && found.Entries > 0 || found.Statuses != want.statuses) {
		w.breaks("the audit of %s by %s has %+v, not %+v", what, actor, found, want)
	}
	w.discarded(actor)
}

// discarded notes what an operator has discarded.
func (w *world) discarded(actor ops.Actor) {
	var ended []struct{ MessageID, HandlerKey, Outcome string }
	w.query(&ended, `SELECT message_id, handler_key, outcome FROM inbox_handler_statuses WHERE id IN (
		SELECT value FROM inbox_audit, json_each(detail, '$.status_ids') WHERE actor = @actor AND action = 'discard' UNION
		SELECT substr(target, 8) FROM inbox_audit WHERE actor = @actor AND action = 'discard' AND target LIKE 'status %')`,
		sql.Named("actor", actor))
	for _, s := range ended {
		w.note("%s of %s is discarded", s.HandlerKey, s.MessageID)
		w.count("statuses", "discarded")
		if s.Outcome != "discarded" {
			w.breaks("%s of %s was discarded and is %q", s.HandlerKey, s.MessageID, s.Outcome)
		}
		w.ledger.mu.Lock()
		w.ledger.discarded[[2]string{strings.TrimSuffix(s.HandlerKey, "-2"), s.MessageID}] = true
		w.ledger.mu.Unlock()
	}
}

// statusKeys returns the keys of the Inbox channel's handlers in both versions, and of the outgoing channel's.
func statusKeys() (keys []string) {
	keys = append(keys, publishing)
	for _, key := range handlers[orders] {
		keys = append(keys, key, key+"-2")
	}
	return keys
}

func retry(ctx context.Context, o *ops.Ops, actor ops.Actor) (audited, error) {
	return bulk(o.RetryMatching(ctx, actor, ops.Filter{HandlerKeys: statusKeys()}, ops.Bulk{}))
}

// discard discards a few open statuses, or a single one, or tries to discard one that is being processed, by the
// event's rate.
func discard(rate int) action {
	return func(ctx context.Context, o *ops.Ops, actor ops.Actor) (audited, error) {
		filter := ops.Filter{HandlerKeys: statusKeys(), States: []ops.State{ops.StatePoisoned, ops.StateFailing,
			ops.StatePending}}
		switch rate % 4 {
		case 0, 1:
			filter.States = []ops.State{ops.StateProcessing}
		case 2:
			return bulk(o.DiscardMatching(ctx, actor, filter, ops.Bulk{Max: 3}))
		}
		page, err := o.List(ctx, filter, "", 1)
		if err != nil || len(page.Items) == 0 {
			return audited{}, err
		}
		return single(o.Discard(ctx, actor, page.Items[0].Ref(), ""))
	}
}

// acceptAgain accepts what is rejected, or requests that.
func acceptAgain(request bool) action {
	return func(ctx context.Context, o *ops.Ops, actor ops.Actor) (want audited, err error) {
		for _, topic := range topics {
			do := o.ReAcceptMatching
			if request {
				do = o.RequestReAcceptMatching
			}
			result, one := do(ctx, actor, ops.RejectedFilter{Channel: topic}, ops.Bulk{})
			want.rows += 1 + result.Done
			err = errors.Join(err, one)
		}
		return want, err
	}
}

// release lets halted partitions go on, or skips the records that have halted them.
func release(skip bool) action {
	return func(ctx context.Context, o *ops.Ops, actor ops.Actor) (want audited, err error) {
		consumers, err := o.Consumers(ctx)
		for _, c := range consumers {
			for _, p := range c.Partitions {
				if !p.Halted || p.Request != nil {
					continue
				}
				do := o.ResumePartition
				if skip && p.Skippable {
					do = o.SkipRecord
				}
				its, one := single(do(ctx, actor, ops.PartitionRef{Channel: c.Channel, Topic: p.Topic, Partition: p.Partition,
					Offset: p.Position, AfterGap: p.AfterGap}))
				want.rows += its.rows
				err = errors.Join(err, one)
			}
		}
		return want, err
	}
}

// backfill gives the handler that only the newer version has what is stored.
func (w *world) backfill(ctx context.Context, o *ops.Ops, actor ops.Actor) (audited, error) {
	return bulk(o.Backfill(ctx, actor, added+"-2", w.began.Add(-24*time.Hour), w.began.Add(24*time.Hour), ops.Bulk{}))
}
