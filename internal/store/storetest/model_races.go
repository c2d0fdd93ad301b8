package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

var modelRaceTests = []test{
	{"concurrent random operations lose nothing and apply each version once", func(s *suite) {
		callers, rounds := 8, 60
		if !s.isServer() {
			callers, rounds = 4, 20 // one writer: every operation waits for all others
		}
		seed := uint64(time.Now().UnixNano())
		s.Logf("seed %d", seed)
		l := &ledger{transitions: map[version]bool{}, open: map[version]bool{}}
		stop := make(chan struct{})
		watched := make(chan error, 1)
		go func() { watched <- s.watch(stop) }()
		s.noErrors(racetest.Together(callers, func(i int) error {
			c := &caller{suite: s, ledger: l, random: rand.New(rand.NewPCG(seed, uint64(i))), rounds: rounds,
				worker: uuid.NewString(), ends: map[string]*store.Place{}}
			return c.run()
		}))
		close(stop)
		require.NoError(s, <-watched)
		s.Logf("%d transitions, %d statuses added, %d deleted, %d collisions", len(l.transitions), l.added, l.deletedStatuses,
			l.collisions)
		l.check(s)
		s.drain(l)
		l.check(s)
	}},
}

// caller is one of many concurrent users of the store.
type caller struct {
	*suite
	*ledger
	random *rand.Rand
	rounds int
	worker string
	ends   map[string]*store.Place // where the last claim of each key ended
}

func (c *caller) run() error {
	kinds := []func(context.Context) error{
		c.accept, c.accept, c.claim, c.claim, c.claim, c.complete, c.complete, c.settle, c.settle, c.completeTx, c.recover,
		c.retry, c.clean,
	}
	for range c.rounds {
		err := kinds[c.random.IntN(len(kinds))](c.ctx)
		if err != nil && store.IsTransient(err) && c.ctx.Err() == nil {
			// Two statements met in opposite orders, and one was rolled back.
			c.Lock()
			if c.collisions++; c.collisions == 1 {
				c.Logf("a collision: %v", err)
			}
			c.Unlock()
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beat sends a heartbeat. It continues under a new ID if the old one was declared dead.
func (c *caller) beat(ctx context.Context) error {
	err := c.store.Heartbeat(ctx, store.Worker{ID: c.worker, Host: "host"}, noon)
	if errors.Is(err, store.ErrWorkerReleased) {
		c.worker = uuid.NewString()
		return c.store.Heartbeat(ctx, store.Worker{ID: c.worker, Host: "host"}, noon)
	}
	return err
}

func (c *caller) accept(ctx context.Context) error {
	batch := store.AcceptBatch{Now: noon}
	deployment := deployments[c.random.IntN(len(deployments))]
	for _, i := range c.random.Perm(30)[:1+c.random.IntN(5)] {
		m := message(fmt.Sprintf("m%02d", i))
		if c.random.IntN(3) > 0 {
			m.OrderingKey = fmt.Appendf(nil, "k%d", i%4)
		}
		for _, status := range deployment[:1+c.random.IntN(len(deployment))] {
			status.Lane = laneOfKey(status, m.OrderingKey)
			m.Handlers = append(m.Handlers, status)
		}
		batch.Messages = append(batch.Messages, m)
	}
	results, err := c.store.Accept(ctx, batch)
	c.Lock()
	defer c.Unlock()
	for _, result := range results {
		c.added += int64(result.StatusesAdded)
		if result.Inserted {
			c.inserted++
		}
	}
	return err
}

func (c *caller) claim(ctx context.Context) error {
	request := store.ClaimRequest{Now: noon.Add(time.Hour)}
	if c.random.IntN(4) > 0 {
		request.WorkerID = c.worker
		if err := c.beat(ctx); err != nil {
			return err
		}
		request.WorkerID = c.worker
	}
	for _, i := range c.random.Perm(len(handlerKeys))[:1+c.random.IntN(3)] {
		request.Limits = append(request.Limits, store.KeyLimit{HandlerKey: handlerKeys[i], Limit: 1 + c.random.IntN(5),
			Lanes: rules[handlerKeys[i]], After: c.ends[handlerKeys[i]]})
		delete(c.ends, handlerKeys[i])
	}
	claimed, err := c.store.Claim(ctx, request)
	if claimed.LanesErr != nil {
		c.Lock()
		c.unadvanced = true
		c.Unlock()
	}
	for _, claim := range claimed.Claims {
		c.learn(claim.Ref)
		c.ends[claim.HandlerKey] = &store.Place{Due: claim.Due, StatusID: claim.StatusID}
		err = errors.Join(err, c.transition(claim.StatusID, claim.Version-1, true))
	}
	return err
}

func (c *caller) complete(ctx context.Context) error {
	var completions []store.Completion
	var changes []version
	refs := c.some(c.random)
	for _, ref := range refs {
		completions = append(completions, store.Completion{StatusID: ref.StatusID, Version: ref.Version,
			Outcome: models.OutcomeProcessed})
		changes = append(changes, version{ref.StatusID, ref.Version})
	}
	locked := store.AwaitLocked
	if c.random.IntN(3) == 0 {
		locked = store.SkipLocked
	}
	applied, err := c.store.Complete(ctx, completions, noon, locked)
	return c.advanceAfter(ctx, refs, c.answered(changes, applied, err))
}

func (c *caller) completeTx(ctx context.Context) error {
	refs := c.some(c.random)
	changes, applied := make([]version, len(refs)), make([]bool, len(refs))
	undone := errors.New("handler failed")
	err := c.db.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
		completions := make([]store.Completion, len(refs))
		for i, ref := range refs {
			changes[i] = version{ref.StatusID, ref.Version}
			completions[i] = store.Completion{StatusID: ref.StatusID, Version: ref.Version,
				Outcome: models.OutcomeProcessed}
		}
		if c.random.IntN(2) == 0 {
			if _, err = c.store.CurrentTx(ctx, tx, completions); err != nil {
				return err
			}
		}
		if applied, err = c.store.CompleteTx(ctx, tx, completions, noon); err != nil {
			return err
		}
		if c.random.IntN(2) == 0 {
			return undone
		}
		return nil
	})
	if errors.Is(err, undone) {
		return nil
	}
	return c.advanceAfter(ctx, refs, c.answered(changes, applied, err))
}

// advanceAfter advances the lanes of rows that may have ended, including those for which this is
// unknown.
func (c *caller) advanceAfter(ctx context.Context, refs []store.Ref, failed error) error {
	var requests []store.LaneRequest
	for _, ref := range refs {
		if ref.Lane != nil {
			requests = append(requests, rules[ref.HandlerKey].Request(*ref.Lane))
		}
	}
	_, err := c.store.AdvanceLanes(ctx, requests, noon.Add(time.Hour))
	if err != nil {
		c.Lock()
		defer c.Unlock()
		c.unadvanced = true
	}
	return errors.Join(failed, err)
}

func (c *caller) settle(ctx context.Context) error {
	return c.give(ctx, c.some(c.random))
}

// give gives statuses back in a random way.
func (c *caller) give(ctx context.Context, refs []store.Ref) error {
	var settlements []store.Settlement
	var changes []version
	for _, ref := range refs {
		changes = append(changes, version{ref.StatusID, ref.Version})
		text, next := "no luck", noon.Add(time.Duration(c.random.IntN(60))*time.Second)
		settlements = append(settlements, store.Settlement{
			StatusID: ref.StatusID, HandlerKey: ref.HandlerKey, Version: ref.Version,
			ErrorCount: ref.ErrorCount + 1, LastError: &text, NextAttemptAt: &next, Poisoned: c.random.IntN(8) == 0,
		})
	}
	locked := store.AwaitLocked
	if c.random.IntN(2) == 0 {
		locked = store.SkipLocked
	}
	applied, err := c.store.Settle(ctx, settlements, locked)
	return c.advanceAfter(ctx, refs, c.answered(changes, applied, err))
}

// recover declares a worker dead, which may well be alive, and gives its claims back. Or it gives
// back claims without a worker.
func (c *caller) recover(ctx context.Context) error {
	workers, err := c.store.Workers(ctx, noon)
	if err != nil || len(workers) == 0 {
		return err
	}
	dead := ""
	if c.random.IntN(3) > 0 {
		dead = workers[c.random.IntN(len(workers))].ID
		if err := c.store.MarkReleased(ctx, dead, noon); err != nil && !errors.Is(err, store.ErrWorkerBusy) {
			return err
		}
	}
	claims, err := openClaims(ctx, c.store)
	if err != nil {
		return err
	}
	var refs []store.Ref
	for _, claim := range claims {
		if claim.WorkerID == dead && (dead != "" || len(refs) < 3) {
			refs = append(refs, claim.Ref)
		}
	}
	c.learn(refs...)
	if err := c.give(ctx, refs); err != nil || dead == "" {
		return err
	}
	_, err = c.store.DeleteWorkers(ctx, []string{dead})
	return err
}

// retry retries one poisoned status as an operator does.
func (c *caller) retry(ctx context.Context) error {
	db := c.db.WithContext(ctx)
	var rows []models.HandlerStatus
	if err := db.Where("is_poisoned").Limit(5).Find(&rows).Error; err != nil || len(rows) == 0 {
		return err
	}
	row := rows[c.random.IntN(len(rows))]
	changed := db.Model(&models.HandlerStatus{}).Where("id = ? AND version = ? AND is_poisoned", row.ID,
		row.Version).Updates(map[string]any{
		"error_count": 0, "is_poisoned": false, "requeued_count": gorm.Expr("requeued_count + 1"),
		"version": gorm.Expr("version + 1"),
	})
	if changed.Error != nil || changed.RowsAffected == 0 {
		return changed.Error
	}
	return c.transition(row.ID, int64(row.Version), false)
}

func (c *caller) clean(ctx context.Context) error {
	result, err := c.store.Cleanup(ctx, store.CleanupRequest{Cutoff: noon.Add(time.Hour), Limit: 1 + c.random.IntN(30)})
	c.Lock()
	defer c.Unlock()
	c.deletedStatuses += result.Statuses
	c.deletedMessages += result.Messages
	return err
}
