package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"

	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// TestRetriedStatusesRunAgain proves contract 11.1: only poisoned statuses may be retried, and a
// retry resets error_count and raises requeued_count and version.
func TestRetriedStatusesRunAgain(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a", "b")
		a, b := r.status("a"), r.status("b")
		out := r.done("retry", a.ID, fmt.Sprintf("%s@%d", b.ID, b.Version))
		require.Equal(t, "retried "+a.ID+"\nretried "+b.ID+"\n", out.out)
		require.Empty(t, out.errOut)
		now := r.status("a")
		require.False(t, now.IsPoisoned)
		require.Equal(t, 0, now.ErrorCount)
		require.Equal(t, a.RequeuedCount+1, now.RequeuedCount)
		r.fixed()
		inboxtest.Process(t, r.ib)
		require.True(t, inboxtest.AllCompleted(t, r.ib))
		require.Equal(t, []string{"alice retry status " + a.ID, "alice retry status " + b.ID}, r.audit())
	})
}

func TestDiscardedStatusesEnd(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a")
		id := r.status("a").ID
		results := r.done("discard", id, "-o", "json").object()
		require.Equal(t, map[string]any{"results": []any{map[string]any{"status_id": id, "outcome": "discarded",
			"error": ""}}}, results)
		require.Equal(t, models.OutcomeDiscarded, r.status("a").Outcome)
		require.Equal(t, []string{"alice discard status " + id}, r.audit())
	})
}

func TestExitCodesReportPartialSuccess(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a", "b", "c")
		a, b, c := r.status("a"), r.status("b"), r.status("c")
		completed := inboxtest.Status(t, r.ib, "a", fine).ID
		unknown := uuid.NewString()
		for _, verb := range []string{"retry", "discard"} {
			for args, want := range map[string]int{
				completed:                                exitNotFound,
				completed + "@7":                         exitRefused,
				completed + " " + completed:              exitNotFound,
				unknown:                                  exitNotFound,
				unknown + " " + unknown:                  exitNotFound,
				unknown + " " + completed + "@7":         exitFailed,
				fmt.Sprintf("%s@%d", a.ID, a.Version+1):  exitRefused,
				"not-an-id":                              exitNotFound,
				a.ID + "@x":                              exitMisuse,
				a.ID + "@0":                              exitMisuse,
				"":                                       exitMisuse,
				a.ID + " --handler " + failing:           exitMisuse,
				"--matching":                             exitMisuse,
				"--matching --yes":                       exitMisuse,
				"--matching --handler x " + a.ID:         exitMisuse,
				"--matching --handler x --chunk 0":       exitMisuse,
				"--matching --handler x --from tomorrow": exitMisuse,
				"--matching --state pending":             exitMisuse,
			} {
				out := r.run(append([]string{verb}, strings.Fields(args)...)...)
				require.Equal(t, want, out.code, "%s %s: %s", verb, args, out.errOut)
				require.Empty(t, out.out)
				require.True(t, strings.HasPrefix(out.errOut, "inboxctl: "), out.errOut)
			}
		}
		require.Equal(t, []models.HandlerStatus{a, b, c}, []models.HandlerStatus{r.status("a"), r.status("b"), r.status("c")},
			"nothing was changed")
		require.Empty(t, r.audit())

		out := r.run("retry", completed, a.ID, unknown)
		require.Equal(t, exitPartly, out.code)
		require.Equal(t, "retried "+a.ID+"\n", out.out)
		require.Equal(t, 2, strings.Count(out.errOut, "not found"))
		require.Contains(t, out.errOut, "1 of 3 done")

		out = r.run("retry", completed, b.ID, "-o", "json")
		require.Equal(t, exitPartly, out.code)
		var results struct {
			Results []struct{ Outcome, Error string }
		}
		out.json(&results)
		require.Len(t, results.Results, 2)
		require.Equal(t, "not retried", results.Results[0].Outcome)
		require.Contains(t, results.Results[0].Error, "no open status has this ID")
		require.Equal(t, "retried", results.Results[1].Outcome)
	})
}

func TestActionOnAllMatchesCountsAndConfirmsFirst(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("connection refused", "a", "b", "c")
		r.poisoned("no such user", "d")
		matching := func(input string, more ...string) result {
			return r.answer(input, append([]string{"retry", "--matching", "--error", "REFUSED"}, more...)...)
		}
		dry := matching("", "--dry-run")
		require.Zero(t, dry.code)
		require.Contains(t, dry.errOut, "Statuses that match (poisoned): 3\n")
		require.Equal(t, 3.0, matching("", "--dry-run", "-o", "json").object()["matched"])

		for _, no := range []string{"", "no\n", "y\n", " yes\n", "yes please\n"} {
			out := matching(no)
			require.Equal(t, exitRefused, out.code, "%q: %s", no, out.errOut)
			require.Contains(t, out.errOut, "retry them as alice? Type yes: ")
			require.Contains(t, out.errOut, "not confirmed, nothing was done")
		}
		counted := len(r.audit())
		require.Equal(t, 2+5, counted, "each count")

		out := matching("yes\n", "--chunk", "2")
		require.Zero(t, out.code, out.errOut)
		require.Equal(t, "retried 3, skipped 0\n", out.out)
		require.Contains(t, out.errOut, "retried 2 of 3, skipped 0\n")
		require.NotContains(t, out.errOut, "retried 3 of 3", "the result says it")
		require.Len(t, r.audit(), counted+1+2+1, "the count, each chunk, and the end")
		require.True(t, r.status("d").IsPoisoned)
		require.False(t, r.status("a").IsPoisoned)

		out = matching("")
		require.Zero(t, out.code)
		require.Contains(t, out.errOut, "Statuses that match (poisoned): 0\n")

		report := r.done("discard", "--matching", "--handler", failing, "--yes", "-o", "json").object()
		require.Equal(t, 1.0, report["done"])
		require.Equal(t, false, report["stopped"])
		require.Equal(t, "", report["error"])
		require.Equal(t, models.OutcomeDiscarded, r.status("d").Outcome)
	})
}

// TestMessagesReceivedAfterTheCountAreExcluded checks that messages received while the operator is being
// asked are excluded, because the operator has not confirmed them.
func TestMessagesReceivedAfterTheCountAreExcluded(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a", "b")
		var out, errOut bytes.Buffer
		asked := false
		in := reader(func(p []byte) (int, error) {
			if !asked {
				asked = true
				r.poisoned("boom", "late")
			}
			return copy(p, "yes\n"), io.EOF
		})
		code := run(t.Context(), []string{"discard", "--matching", "--handler", failing},
			system{in: in, out: &out, errOut: &errOut, getenv: func(name string) string { return r.env[name] }})
		require.Zero(t, code, errOut.String())
		require.True(t, asked)
		require.Equal(t, "discarded 2, skipped 0\n", out.String())
		require.True(t, r.status("late").IsPoisoned)
	})
}

// interrupting cancels as soon as what is written satisfies a condition.
type interrupting struct {
	bytes.Buffer
	at     func(text string) bool
	cancel context.CancelFunc
}

func containing(part string) func(string) bool {
	return func(text string) bool { return strings.Contains(text, part) }
}

func (w *interrupting) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if w.at(w.String()) {
		w.cancel()
	}
	return n, err
}

func TestInterruptEndsBetweenChunksAndPrintsTheProgress(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a", "b", "c", "d", "e")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		errOut := &interrupting{at: containing("retried 2 of 5"), cancel: cancel}
		var out bytes.Buffer
		code := run(ctx, []string{"retry", "--matching", "--handler", failing, "--yes", "--chunk", "2", "-o", "json"},
			system{in: strings.NewReader(""), out: &out, errOut: errOut,
				getenv: func(name string) string { return r.env[name] }})
		require.Equal(t, exitPartly, code)
		require.Contains(t, errOut.String(), "stopped: 2 of 5 retried")
		report := result{t: t, out: out.String()}.object()
		require.Equal(t, 2.0, report["done"])
		require.Equal(t, true, report["stopped"])
		require.Equal(t, 3.0, r.done("list", "--state", "poisoned", "--count", "-o", "json").object()["count"])
		require.Len(t, r.audit(), 3, "the count, the chunk and the end")
		r.done("retry", "--matching", "--handler", failing, "--yes")
		require.Equal(t, 0.0, r.done("list", "--state", "poisoned", "--count", "-o", "json").object()["count"])
	})
}

func TestInterruptWaitsBrieflyForTheCurrentChunk(t *testing.T) {
	var said bytes.Buffer
	a := &app{system: system{errOut: zapcore.Lock(zapcore.AddSync(&said))}}
	ctx, interrupt := context.WithCancel(t.Context())
	chunks, end := a.betweenChunks(ctx, inboxtest.Patience)
	interrupt()
	require.NoError(t, chunks.Err(), "the chunk under way goes on")
	end()
	require.Error(t, chunks.Err())

	ctx, interrupt = context.WithCancel(t.Context())
	chunks, end = a.betweenChunks(ctx, 1)
	defer end()
	require.NoError(t, chunks.Err())
	interrupt()
	inboxtest.Receive(t, chunks.Done(), "the limit")
}

func TestInterruptDuringConfirmationChangesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "a")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		errOut := &interrupting{at: containing("Type yes"), cancel: cancel}
		silent := make(chan struct{})
		defer close(silent)
		code := run(ctx, []string{"discard", "--matching", "--handler", failing},
			system{in: reader(func([]byte) (int, error) {
				<-silent
				return 0, context.Canceled
			}), out: &bytes.Buffer{}, errOut: errOut, getenv: func(name string) string { return r.env[name] }})
		require.Equal(t, exitRefused, code)
		require.True(t, r.status("a").IsPoisoned)
		require.Equal(t, []string{"alice discard matching statuses"}, r.audit(), "the count")
	})
}

type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }

// TestMessageIDSelectsStatusesThatAllowTheAction proves contract 11.1.
func TestMessageIDSelectsStatusesThatAllowTheAction(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		uuids := uuid.NewString()
		r.poisoned("boom", "a", uuids, "b@1")
		for _, no := range []string{"", "no\n"} {
			out := r.answer(no, "retry", "a", uuids)
			require.Equal(t, exitRefused, out.code)
			require.Contains(t, out.errOut, failing+" of message a: poisoned, poison: boom\n")
			require.Contains(t, out.errOut, "retry 2 statuses as alice? Type yes: ")
		}
		require.Empty(t, r.audit())
		a, b := r.status("a").ID, r.status("b@1").ID
		require.Equal(t, "retried "+a+"\n", r.answer("yes\n", "retry", "a").out)
		require.Equal(t, "discarded "+b+"\n", r.done("discard", "b@1", "--yes").out)
		require.Equal(t, "retried "+r.status(uuids).ID+"\n", r.done("retry", uuids, "--yes").out)

		out := r.run("retry", "a", "--yes")
		require.Equal(t, exitRefused, out.code)
		require.Contains(t, out.errOut, "none of its statuses is poisoned or failing")
		out = r.run("retry", "nobody")
		require.Equal(t, exitNotFound, out.code)
		require.Contains(t, out.errOut, "it is the ID of neither a status nor a message with handlers")
		require.Equal(t, exitNotFound, r.run("retry", uuids, "--yes", "--namespace", "elsewhere").code)
		require.Len(t, r.audit(), 3)
	})
}

// TestFailingStatusesAreRetried proves contract 11.1.
func TestFailingStatusesAreRetried(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "a", "b")
		require.NoError(t, r.d.DB.Model(&models.HandlerStatus{}).Where("handler_key = ?", failing).Updates(map[string]any{
			"error_count": 1, "last_error": "boom", "fingerprint": fingerprint.Of(failing, "boom"),
			"next_attempt_at": time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)}).Error)
		require.Equal(t, "retried "+r.status("a").ID+"\n", r.done("retry", r.status("a").ID).out)
		require.Equal(t, exitMisuse, r.run("retry", "--matching", "--handler", failing, "--state", "pending").code)
		require.Contains(t, r.done("retry", "--matching", "--handler", failing, "--state", "failing,poisoned", "--yes").errOut,
			"Statuses that match (failing, poisoned): 1\n")
		inboxtest.Process(t, r.ib)
		require.True(t, inboxtest.AllCompleted(t, r.ib))
	})
}

// TestPendingStatusesAreDiscarded proves contract 11.1: by status ID, and all that match if --state names them.
func TestPendingStatusesAreDiscarded(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom", "poisoned")
		inboxtest.Accept(t, r.ib, "a", "b", "c", "running")
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = 'running'`)
		out := r.run("discard", "a", "--yes")
		require.Equal(t, exitRefused, out.code, "a message ID stands for the poisoned")
		require.Contains(t, out.errOut, "none of its statuses is poisoned")
		require.Equal(t, exitRefused, r.run("discard", r.status("running").ID).code)
		require.Equal(t, "discarded "+r.status("a").ID+"\n", r.done("discard", r.status("a").ID).out)
		require.Contains(t, r.done("discard", "--matching", "--handler", failing, "--dry-run").errOut, "(poisoned): 1\n")
		out = r.done("discard", "--matching", "--handler", failing, "--state", "pending", "--reason", "no longer sold", "--yes")
		require.Contains(t, out.errOut, "Statuses that match (pending): 2\n")
		require.Equal(t, "discarded 2, skipped 0\n", out.out)
		require.Contains(t, r.done("audit", "--action", "discard").out, "reason no longer sold")
		require.Equal(t, models.OutcomeDiscarded, r.status("b").Outcome)
		require.True(t, r.status("poisoned").IsPoisoned)
		require.Nil(t, r.status("running").CompletedAt)
		require.Equal(t, exitMisuse, r.run("discard", "--matching", "--state", "pending", "--yes").code, "not everything")
	})
}
