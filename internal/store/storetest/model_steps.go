package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/internal/store"
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
}

func drawClaim(t *rapid.T) operation {
	step := claimStep{Worker: rapid.IntRange(0, 2).Draw(t, "worker")}
	for _, key := range some(t, handlerKeys, 1, 5) {
		step.Limits = append(step.Limits, limit{Key: key, Limit: rapid.SampledFrom([]int{1, 1, 1, 2, 3, 0}).Draw(t, "limit")})
	}
	step.Behind = rapid.SampledFrom([]time.Duration{0, 0, 0, time.Second, 2 * time.Hour}).Draw(t, "behind")
	return step
}

func (c claimStep) run(m *machine) {
	request := store.ClaimRequest{WorkerID: m.workerIDs[c.Worker], Now: m.model.now}
	for _, limit := range c.Limits {
		request.Limits = append(request.Limits, store.KeyLimit{HandlerKey: limit.Key, Limit: limit.Limit,
			Lanes: rules[limit.Key]})
	}
	if !m.model.dueFromCreation {
		request.Now = request.Now.Add(-c.Behind)
	}
	expected := m.model.claim(request)
	answer, err := m.store.Claim(m.ctx, request)
	require.NoError(m, err)
	require.NoError(m, answer.LanesErr)
	claims := answer.Claims
	require.Equal(m, pairs(expected), claimed(claims), "what is claimed")
	for i, claim := range claims {
		at := version{claim.StatusID, claim.Version}
		require.False(m, m.claimed[at], "%v claimed twice", at)
		m.claimed[at] = true
		m.learn(claim.Ref)
		row, message := expected[i], m.model.messages[expected[i].MessageID]
		require.Equal(m, store.Claim{
			Ref: refOf(row), RequeuedCount: row.RequeuedCount, CreatedAt: row.CreatedAt, Due: due(row), Message: &message,
		}, bare(claim))
	}
	marked := m.adoptMarks(true)
	for _, row := range marked {
		require.Contains(m, answer.More, row.HandlerKey, "a claim says what it passed over")
	}
	m.Logf("claimed %v, marked %v", claimed(claims), pairs(marked))
}

func bare(c store.Claim) store.Claim {
	c.Locator = ""
	if c.Message != nil {
		c.Message.ReceivedAt = c.Message.ReceivedAt.UTC()
	}
	return c
}
