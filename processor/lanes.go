package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/store"
)

// lanes lets the next row of a lane run when one before it has ended. The store marks the waiting
// rows when it claims: see AdvanceLanes.
type lanes struct {
	*shared
	notify func(handlerKeys ...string) // wakes other programs

	mu      sync.Mutex
	checked time.Time // when all lanes were checked last; zero if a check is due
}

// laneInterval is how often all lanes are checked although no advance is known to be missing. A
// process that has no worker may have died before it advanced a lane.
const laneInterval = time.Minute

// recheck makes the next sweep check all lanes.
func (l *lanes) recheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checked = time.Time{}
}

func (l *lanes) checkDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.checked) < laneInterval {
		return false
	}
	l.checked = time.Now()
	return true
}

// advance advances the lanes of claims that have ended, with any result. Their ends must be
// committed. If it fails, the next sweep checks all lanes instead.
func (l *lanes) advance(ctx context.Context, ended []store.Ref) {
	var requests []store.LaneRequest
	for _, r := range ended {
		requests = l.request(requests, r)
	}
	if len(requests) == 0 {
		return
	}
	keys, err := l.store.AdvanceLanes(ctx, requests, l.clock.Now())
	if err != nil {
		l.checkFailed(err)
		return
	}
	l.free(keys)
}

// request appends the request for the lane of a claim that has ended, if it has one.
func (l *lanes) request(requests []store.LaneRequest, r store.Ref) []store.LaneRequest {
	h, known := l.registry.Lookup(r.HandlerKey)
	if r.Lane == nil || !known || l.policies[h].lanes == nil {
		return requests
	}
	return append(requests, l.policies[h].lanes.Request(*r.Lane))
}

// runNext advances the lanes of these results. Where reserve grants slots, the lane's next message is claimed by the
// same statement and runs at once: otherwise each message of a lane would wait for another claim. Only a status
// that has ended makes room for the next. One that was released is itself next, and why it was released may still hold.
// Handlers with legacy keys need a claim, which looks for siblings. A next message whose key we do not have, because
// other programs have renamed the handler, is left to them.
func (l *lanes) runNext(ctx context.Context, ended []result, reserve func(map[string]int) *Reservation) {
	if len(ended) == 0 {
		return
	}
	ended = lastOfLanes(ended)
	wanted := map[string]int{}
	for _, r := range ended {
		if r.ended() && len(r.Handler.LegacyKeys()) == 0 {
			wanted[r.Handler.Key()]++
		}
	}
	var reserved *Reservation
	if reserve != nil {
		reserved = reserve(wanted)
	}
	if reserved == nil || reserved.grant.Empty() {
		refs := make([]store.Ref, len(ended))
		for i, r := range ended {
			refs[i] = r.claim.Ref
		}
		l.advance(ctx, refs)
		return
	}
	var requests []store.LaneRequest
	granted := map[string]int{}
	for key := range wanted {
		granted[key] = reserved.grant.Messages(key)
	}
	for _, r := range ended {
		before := len(requests)
		requests = l.request(requests, r.claim.Ref)
		if key := r.Handler.Key(); len(requests) > before && r.ended() && granted[key] > 0 {
			granted[key]--
			requests[before].ClaimKey = key
		}
	}
	next, err := l.store.ClaimNext(ctx, reserved.Worker(), requests, l.clock.Now())
	if err != nil {
		reserved.Abandon(true)
		l.checkFailed(err)
		return
	}
	reserved.run(next.Claims, nil)
	l.free(next.More)
}

func (l *lanes) checkFailed(err error) {
	l.recheck()
	l.log.Warn("inbox: advancing lanes failed, the next sweep checks them", zap.Error(err))
}

// free wakes the handlers of these keys, also those that only other programs have.
func (l *lanes) free(keys []string) {
	l.wakeKnown(keys)
	l.notifyOthers(keys)
}

// notifyOthers notifies other programs of those keys that we do not have. They may have renamed a handler of ours.
func (l *lanes) notifyOthers(keys []string) {
	l.notify(slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		_, known := l.registry.Lookup(key)
		return known
	})...)
}

// lanePage is how many lanes one statement of a check covers.
const lanePage = 500

// check advances lanes whose advance is missing because a process died between the commit and the advance. It checks
// all lanes with waiting rows. Waiting rows of handlers that are no longer ordered are released, because they need no
// order. Lanes whose name no handler has any more are checked, too.
func (l *lanes) check(ctx context.Context) error {
	err := l.checkAll(ctx)
	if err != nil {
		l.recheck()
	}
	return err
}

func (l *lanes) checkAll(ctx context.Context) error {
	var waiting []int64
	err := l.within(ctx, func(ctx context.Context) (err error) {
		waiting, err = l.store.WaitingLaneHandlers(ctx)
		return err
	})
	if err != nil || len(waiting) == 0 {
		return err
	}
	var problems []error
	known := map[int64]bool{}
	var unordered []string
	for h := range l.registry.Handlers() {
		rule := l.policies[h].lanes
		if rule == nil {
			unordered = append(unordered, h.Keys()...)
			for _, key := range h.Keys() {
				known[store.LaneHandler(key)] = true
			}
			continue
		}
		for _, name := range rule.Handlers {
			known[name] = true
		}
		if slices.ContainsFunc(rule.Handlers, func(name int64) bool { return slices.Contains(waiting, name) }) {
			problems = append(problems, l.walk(ctx, *rule))
		}
	}
	for _, name := range waiting {
		if !known[name] {
			// Releasing a row is harmless under any rule of the lane, because claims judge it again.
			problems = append(problems, l.walk(ctx, store.LaneRule{Handlers: []int64{name}, SkipPoisoned: true}))
		}
	}
	return errors.Join(append(problems, l.releaseUnordered(ctx, unordered))...)
}

func (l *lanes) walk(ctx context.Context, rule store.LaneRule) error {
	var after *store.Lane
	for {
		var next *store.Lane
		var keys []string
		err := l.within(ctx, func(ctx context.Context) (err error) {
			next, keys, err = l.store.CheckLanes(ctx, rule, after, lanePage, l.clock.Now())
			return err
		})
		if err != nil {
			return err
		}
		l.wakeKnown(keys) // not other programs: for a handler that none has, each check would notify them again
		if next == nil {
			return nil
		}
		after = next
	}
}

func (l *lanes) releaseUnordered(ctx context.Context, handlerKeys []string) error {
	for len(handlerKeys) > 0 {
		var released int64
		err := l.within(ctx, func(ctx context.Context) (err error) {
			released, err = l.store.ReleaseWaiting(ctx, handlerKeys, lanePage)
			return err
		})
		if err != nil {
			return fmt.Errorf("release waiting statuses of handlers that are no longer ordered: %w", err)
		}
		if released > 0 {
			l.wakeKnown(handlerKeys)
		}
		if released < lanePage {
			return nil
		}
	}
	return nil
}

func (l *lanes) within(ctx context.Context, statement func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.opts.StatementTimeout)
	defer cancel()
	return statement(ctx)
}
