package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// operation is one step of a sequence. It does the same to the store and to the model and compares
// the answers. The tables are compared after it.
type operation interface{ run(m *machine) }

// drawn is an operation that prints without the types.
type drawn struct{ operation }

func (d drawn) GoString() string {
	return strings.TrimPrefix(fmt.Sprintf("%T %+v", d.operation, d.operation), "storetest.")
}

// operations draws a step. Frequent kinds are listed more often. The first is the simplest: rapid
// turns a step that cannot be left out of a failing sequence into that one.
var operations = rapid.Custom(func(t *rapid.T) drawn {
	draw := rapid.SampledFrom([]func(*rapid.T) operation{
		drawAdvance, drawAdvance, drawAccept, drawAccept, drawAccept, drawClaim, drawClaim, drawClaim, drawClaim, drawClaim,
		drawRun, drawRun,
		drawComplete, drawComplete, drawComplete, drawSettle, drawSettle, drawSettle, drawSettle,
		drawRecover, drawOperator, drawWorker, drawPause, drawCleanup, drawRead, drawLanes,
	}).Draw(t, "kind")
	return drawn{draw(t)}
})

// deployments are versions of one service, in which a handler is renamed once and then again
// (contract 4.2).
var deployments = [][]store.NewStatus{
	{{HandlerKey: "alpha"}, {HandlerKey: "beta"}, {HandlerKey: "gamma"}},
	{{HandlerKey: "alpha"}, {HandlerKey: "beta"}, {HandlerKey: "delta", LegacyKeys: []string{"gamma"}}},
	{{HandlerKey: "epsilon", LegacyKeys: []string{"delta", "gamma"}}, {HandlerKey: "beta"}},
}

var (
	messageIDs  = []string{"m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8"}
	handlerKeys = []string{"alpha", "beta", "delta", "epsilon", "gamma"}
	delays      = rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, time.Minute, time.Hour, 30 * time.Hour})
	targets     = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) target {
		return target{
			Of:    rapid.SampledFrom([]string{"claimed", "claimed", "known", "pending"}).Draw(t, "of"),
			Index: rapid.IntRange(0, 10).Draw(t, "index"),
		}
	}), 1, 3)
)

// some draws distinct elements. We do not use rapid's own generator for this, which draws until it
// has enough. From so few elements it draws many in vain, and does not find its way back to them
// when it shortens a sequence.
func some[T any](t *rapid.T, of []T, least, most int) []T {
	count := rapid.IntRange(least, most).Draw(t, "count")
	return rapid.Permutation(of).Draw(t, "order")[:count]
}

type acceptStep struct {
	Deployment int
	Messages   []arrival
	Tx         string // none, committed, rolled back
}

type arrival struct {
	ID        string
	Differs   string // from what is usual with this ID: nothing, content, type or source
	Handlers  []int  // of the deployment
	Retention time.Duration
	// Key is the ordering key, none if empty.
	Key string
	// Later is how long after the accept the statuses are due; not before it if it is 0 or less.
	Later time.Duration
}

func drawAccept(t *rapid.T) operation {
	step := acceptStep{Deployment: rapid.IntRange(0, len(deployments)-1).Draw(t, "deployment")}
	handlers := []int{0, 1, 2}[:len(deployments[step.Deployment])]
	for _, id := range some(t, messageIDs, 1, 4) {
		step.Messages = append(step.Messages, arrival{
			ID: id, Handlers: some(t, handlers, 0, len(handlers)),
			Differs:   rapid.SampledFrom([]string{"", "", "", "content", "type", "source"}).Draw(t, "differs"),
			Retention: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "retention"),
			Key:       rapid.SampledFrom([]string{"k1", "k1", "k1", "k2", ""}).Draw(t, "key"),
			Later:     rapid.SampledFrom([]time.Duration{0, 0, 0, 0, -time.Second, time.Second, time.Hour}).Draw(t, "later"),
		})
	}
	step.Tx = rapid.SampledFrom([]string{"none", "none", "committed", "rolled back"}).Draw(t, "tx")
	return step
}

func (a acceptStep) run(m *machine) {
	batch := store.AcceptBatch{Now: m.model.now}
	for i, each := range a.Messages {
		arrived := message(each.ID)
		switch each.Differs {
		case "content":
			arrived.Content = []byte("other")
		case "type":
			arrived.Type = "order.shipped"
			arrived.Rejection = rejecting(int64(i)) // may already be known
		case "source":
			arrived.Source = "/other"
			arrived.Rejection = rejecting(int64(100 + m.steps))
		}
		if each.Key != "" {
			arrived.OrderingKey = []byte(each.Key)
		}
		for _, index := range each.Handlers {
			status := deployments[a.Deployment][index]
			status.Retention = each.Retention
			status.Lane = laneOfKey(status, arrived.OrderingKey)
			if each.Later != 0 {
				status.NotBefore = m.model.now.Add(each.Later)
			}
			arrived.Handlers = append(arrived.Handlers, status)
		}
		batch.Messages = append(batch.Messages, arrived)
	}
	m.steps++
	expected, added, keep := m.model.accept(batch)
	if a.Tx == "none" {
		results, err := m.store.Accept(m.ctx, batch)
		require.NoError(m, err)
		require.Equal(m, expected, results)
	} else if !m.inTx(a.Tx, func(tx *gorm.DB) {
		results, err := m.store.AcceptTx(m.ctx, tx, batch)
		require.NoError(m, err)
		require.Equal(m, expected, results)
	}) {
		return
	}
	keep()
	m.adopt(added)
	m.Logf("added %v", pairs(added))
}

// inTx runs work in a transaction, commits it or rolls it back, and reports whether it committed.
func (m *machine) inTx(end string, work func(tx *gorm.DB)) bool {
	m.Helper()
	tx := m.db.Begin()
	require.NoError(m, tx.Error)
	defer tx.Rollback() // does nothing after a commit
	work(tx)
	if end == "committed" {
		require.NoError(m, tx.Commit().Error)
		return true
	}
	return false
}

type claimStep struct {
	Worker int // 0: manual mode
	Limits []limit
	// Behind is how far the claimer's clock is behind, where clocks may differ.
	Behind time.Duration
}

type limit struct {
	Key   string
	Limit int
	// Resumes means that the claim may begin where the last one of the key ended.
	Resumes bool
}

func drawClaim(t *rapid.T) operation {
	step := claimStep{Worker: rapid.IntRange(0, 2).Draw(t, "worker")}
	for _, key := range some(t, handlerKeys, 1, 5) {
		step.Limits = append(step.Limits, limit{
			Key: key, Limit: rapid.SampledFrom([]int{1, 1, 1, 2, 3, 0}).Draw(t, "limit"),
			Resumes: rapid.Bool().Draw(t, "resumes"),
		})
	}
	step.Behind = rapid.SampledFrom([]time.Duration{0, 0, 0, time.Second, 2 * time.Hour}).Draw(t, "behind")
	return step
}

func (c claimStep) run(m *machine) {
	request := store.ClaimRequest{WorkerID: m.workerIDs[c.Worker], Now: m.model.now}
	for _, limit := range c.Limits {
		asked := store.KeyLimit{HandlerKey: limit.Key, Limit: limit.Limit, Lanes: rules[limit.Key]}
		if end, found := m.ends[limit.Key]; found && limit.Resumes {
			asked.After = &end
		}
		request.Limits = append(request.Limits, asked)
	}
	if !m.model.dueFromCreation {
		request.Now = request.Now.Add(-c.Behind)
	}
	answer, err := m.store.Claim(m.ctx, request)
	require.NoError(m, err)
	require.NoError(m, answer.LanesErr)
	claims, taken := answer.Claims, map[string]bool{}
	for _, claim := range claims {
		taken[claim.StatusID] = true
		m.ends[claim.HandlerKey] = store.Place{Due: claim.Due, StatusID: claim.StatusID}
	}
	expected, more := m.model.claim(request, taken)
	for key := range more {
		require.Contains(m, answer.More, key, "a claim says what it passed over")
	}
	require.Equal(m, pairs(expected), claimed(claims), "what is claimed")
	for i, claim := range claims {
		at := version{claim.StatusID, claim.Version}
		require.False(m, m.claimed[at], "%v claimed twice", at)
		m.claimed[at] = true
		m.learn(claim.Ref)
		row, message := expected[i], m.model.messages[expected[i].MessageID]
		require.Equal(m, store.Claim{
			Ref: refOf(row), RequeuedCount: row.RequeuedCount, MessageBytes: row.MessageBytes, CreatedAt: row.CreatedAt,
			Due: due(row), Message: &message,
		}, bare(claim))
	}
	marked := m.adoptMarks(true)
	for _, row := range marked {
		require.Contains(m, answer.More, row.HandlerKey, "a claim says what it passed over")
	}
	m.Logf("claimed %v, marked %v", claimed(claims), pairs(marked))
}

// runStep claims what follows a claim in its lane.
type runStep struct {
	Worker int
	Head   []target
	Limit  int
}

func drawRun(t *rapid.T) operation {
	return runStep{Worker: rapid.IntRange(0, 2).Draw(t, "worker"), Head: targets.Draw(t, "head"),
		Limit: rapid.IntRange(0, 4).Draw(t, "limit")}
}

func (r runStep) run(m *machine) {
	picked := m.picked(r.Head)
	if len(picked) == 0 || picked[0].Lane == nil {
		return
	}
	head := picked[0]
	rule := *rules[head.HandlerKey]
	request := store.RunRequest{LaneRequest: rule.Request(*head.Lane), Head: head, Limit: r.Limit}
	request.ClaimKey = head.HandlerKey
	claims, err := m.store.ClaimRuns(m.ctx, m.workerIDs[r.Worker], []store.RunRequest{request}, m.model.now)
	require.NoError(m, err)
	expected := m.model.run(m.workerIDs[r.Worker], request)
	require.Equal(m, pairs(expected), claimed(claims), "the run")
	for i, claim := range claims {
		at := version{claim.StatusID, claim.Version}
		require.False(m, m.claimed[at], "%v claimed twice", at)
		m.claimed[at] = true
		m.learn(claim.Ref)
		require.Equal(m, refOf(expected[i]), claim.Ref)
	}
	m.Logf("run %v", claimed(claims))
}

func bare(c store.Claim) store.Claim {
	if c.Message != nil {
		c.Message.ReceivedAt = c.Message.ReceivedAt.UTC()
	}
	return c
}

type completeStep struct {
	Targets []target
	Outcome models.Outcome
	How     string // together, unlocked, or each alone in a transaction that is committed or rolled back
	Dies    bool   // before it advances the lanes
}

func drawComplete(t *rapid.T) operation {
	return completeStep{
		Targets: targets.Draw(t, "targets"),
		Outcome: rapid.SampledFrom([]models.Outcome{models.OutcomeProcessed, models.OutcomeProcessed,
			models.OutcomeSuperseded}).Draw(t, "outcome"),
		How:  rapid.SampledFrom([]string{"together", "together", "unlocked", "committed", "rolled back"}).Draw(t, "how"),
		Dies: rapid.IntRange(0, 3).Draw(t, "dies") == 3,
	}
}

func (c completeStep) run(m *machine) {
	var completions []store.Completion
	for _, ref := range m.picked(c.Targets) {
		completions = append(completions, store.Completion{StatusID: ref.StatusID, Version: ref.Version,
			Outcome: c.Outcome})
	}
	m.complete(completions, c.How, c.Dies)
}

func (m *machine) complete(completions []store.Completion, how string, dies bool) {
	m.Helper()
	expected := make([]bool, len(completions))
	for i, completion := range completions {
		_, expected[i] = m.model.current(completion.StatusID, completion.Version)
	}
	applied, err := make([]bool, len(completions)), error(nil)
	switch how {
	case "together":
		applied, err = m.store.Complete(m.ctx, completions, m.model.now, store.AwaitLocked)
	case "unlocked":
		applied, err = m.store.Complete(m.ctx, completions, m.model.now, store.SkipLocked)
	default:
		if !m.inTx(how, func(tx *gorm.DB) {
			applied, err = m.store.CompleteTx(m.ctx, tx, completions, m.model.now)
			require.NoError(m, err)
		}) {
			require.Equal(m, expected, applied)
			return
		}
	}
	require.NoError(m, err)
	require.Equal(m, expected, applied)
	var ended []string
	for _, completion := range completions {
		if m.model.complete(completion, m.model.now) {
			ended = append(ended, completion.StatusID)
		}
	}
	m.Logf("applied %v", applied)
	m.advanceAfter(ended, dies)
}

type settleStep struct {
	Targets  []target
	How      string // failed, poisoned, snoozed, released
	Delay    time.Duration
	Unlocked bool
	Dies     bool // before it advances the lanes
}

func drawSettle(t *rapid.T) operation {
	return settleStep{
		Targets:  targets.Draw(t, "targets"),
		How:      rapid.SampledFrom([]string{"failed", "poisoned", "snoozed", "released"}).Draw(t, "how"),
		Delay:    delays.Draw(t, "delay"),
		Unlocked: rapid.Bool().Draw(t, "unlocked"),
		Dies:     rapid.IntRange(0, 3).Draw(t, "dies") == 3,
	}
}

func (s settleStep) run(m *machine) {
	var settlements []store.Settlement
	for _, ref := range m.picked(s.Targets) {
		m.steps++
		text, next := fmt.Sprintf("failure %d", m.steps), m.model.now.Add(s.Delay)
		settled := store.Settlement{StatusID: ref.StatusID, HandlerKey: ref.HandlerKey, Version: ref.Version,
			ErrorCount: ref.ErrorCount, AbandonedCount: ref.AbandonedCount}
		switch s.How {
		case "failed":
			settled.ErrorCount, settled.AbandonedCount, settled.LastError, settled.NextAttemptAt = ref.ErrorCount+
				1, 0, &text, &next
		case "poisoned": // with a time that must not be stored
			settled.ErrorCount, settled.LastError, settled.NextAttemptAt, settled.Poisoned = ref.ErrorCount+1, &text, &next, true
		case "snoozed":
			settled.AbandonedCount, settled.NextAttemptAt = 0, &next
		}
		settlements = append(settlements, settled)
	}
	m.settle(settlements, s.Unlocked, s.Dies)
}

func (m *machine) settle(settlements []store.Settlement, unlocked, dies bool) {
	m.Helper()
	locked := store.AwaitLocked
	if unlocked {
		locked = store.SkipLocked
	}
	applied, err := m.store.Settle(m.ctx, settlements, locked)
	require.NoError(m, err)
	expected := make([]bool, len(settlements))
	var ended []string
	for i, settlement := range settlements {
		if expected[i] = m.model.settle(settlement); expected[i] {
			ended = append(ended, settlement.StatusID)
		}
	}
	require.Equal(m, expected, applied)
	m.Logf("applied %v", applied)
	m.advanceAfter(ended, dies)
}

// learn keeps statuses that the store has returned.
func (m *machine) learn(refs ...store.Ref) {
	m.known = append(m.known, refs...)
}

// target picks a status: among those in some state, longest due first, or among everything the
// store ever returned, newest first. An Index beyond the last means the last, so that a shorter
// sequence picks the same ones.
type target struct {
	Of    string // claimed, pending, poisoned, known
	Index int
}

func (m *machine) pick(t target) (ref store.Ref, found bool) {
	if t.Of == "known" {
		if len(m.known) == 0 {
			return ref, false
		}
		return m.known[max(len(m.known)-1-t.Index, 0)], true
	}
	rows := m.model.sorted(func(row models.HandlerStatus) bool {
		switch t.Of {
		case "claimed":
			return claimedRow(row)
		case "pending":
			return pending(row) && row.ProcessingStartedAt == nil
		default:
			return row.IsPoisoned && row.CompletedAt == nil
		}
	})
	if len(rows) == 0 {
		return ref, false
	}
	return refOf(rows[min(t.Index, len(rows)-1)]), true
}

// picked returns the distinct statuses of targets, at one version each.
func (m *machine) picked(targets []target) (refs []store.Ref) {
	taken := map[version]bool{}
	for _, t := range targets {
		ref, found := m.pick(t)
		if at := (version{ref.StatusID, ref.Version}); found && !taken[at] {
			taken[at] = true
			refs = append(refs, ref)
		}
	}
	return refs
}

func refOf(row models.HandlerStatus) store.Ref {
	return store.Ref{
		StatusID: row.ID, MessageNumber: row.MessageNumber, MessageID: row.MessageID,
		HandlerKey: row.HandlerKey, Version: int64(row.Version),
		ErrorCount: row.ErrorCount, AbandonedCount: row.AbandonedCount, Lane: laneOf(row),
	}
}
