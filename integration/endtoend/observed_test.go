package endtoend

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// observed is a worker in this process whose log is checked.
type observed struct {
	*inbox.Inbox
	logs *observer.ObservedLogs
}

func (r *rig) observed() *observed {
	r.t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	ib, err := inbox.New(workload.InboxName, openGORM(r.t, r.settings.DSN),
		r.settings.Options(workload.NewHandlers(r.db), zap.New(core))...)
	require.NoError(r.t, err)
	require.NoError(r.t, ib.Start(r.t.Context()))
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), r.settings.StopDeadline())
		defer cancel()
		require.NoError(r.t, ib.Stop(ctx))
	})
	return &observed{ib, logs}
}

// consumes reports whether the worker is a group member with partitions.
func (o *observed) consumes() bool {
	h := o.Health().Consumers[0]
	return h.State == kafkaconsumer.StateRunning && len(h.Partitions) > 0
}

// forget drops the log so far.
func (o *observed) forget() { o.logs.TakeAll() }

const (
	// sameLines is how often a worker may log the same message during one outage: once when it
	// begins, and again when a part of the worker restarts.
	sameLines = 3
	// allLines is how many lines it may log in all: the begin and the end of ten conditions, and a few
	// about what is only repeated.
	allLines = 24
)

// single reports whether a line is about one message, or sums up such lines.
func single(entry observer.LoggedEntry) bool {
	switch strings.TrimSuffix(entry.Message, ": further lines were left out") {
	case "inbox: bad record kept as rejected", "inbox: attempt failed":
		return true
	}
	return slices.ContainsFunc(entry.Context, func(f zap.Field) bool { return f.Key == "message_id" })
}

// quiet fails the test if an outage flooded the log (contract 7.8). Lines about single messages do
// not count, because each message may fail once.
func (o *observed) quiet(t *testing.T, outage string) {
	t.Helper()
	lines, all := map[string]int{}, 0
	for _, entry := range o.logs.TakeAll() {
		if single(entry) {
			continue
		}
		lines[entry.Message]++
		all++
	}
	t.Logf("%s: %d lines were logged: %v", outage, all, lines)
	for line, n := range lines {
		require.LessOrEqual(t, n, sameLines, line)
	}
	require.LessOrEqual(t, all, allLines)
}
