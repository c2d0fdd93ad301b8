package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// update is set to rewrite the golden files and docs/inboxctl.md: go test . -update
var update = flag.Bool("update", false, "rewrite the golden files and docs/inboxctl.md")

// rig is an inbox with one handler that fails on demand and one that succeeds, and inboxctl on its
// database with the operators' role.
type rig struct {
	t   testing.TB
	d   *inboxtest.Database
	ib  *inbox.Inbox
	env map[string]string

	mu    sync.Mutex
	fails map[string]string // error by message ID
}

const failing, fine = "orders.mail", "orders.invoice"

func onEach(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) { test(t, newRig(t, d)) })
}

func newRig(t testing.TB, d *inboxtest.Database, opts ...inbox.Option) *rig {
	r := &rig{t: t, d: d, fails: map[string]string{},
		env: map[string]string{dsnVariable: d.OperatorDSN(t), actorVariable: "alice"}}
	fail := func(_ context.Context, m inboxtest.Bytes) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if text := r.fails[m.ID]; text != "" {
			return handler.Poison(errors.New(text))
		}
		return nil
	}
	opts = append(opts, inboxtest.Handlers(inboxtest.Do(failing, fail), inboxtest.Do(fine, inboxtest.Nothing)))
	r.ib = inboxtest.New(t, d.DB, opts...)
	return r
}

// poisoned accepts messages and has the failing handler poison them.
func (r *rig) poisoned(text string, ids ...string) {
	r.t.Helper()
	r.mu.Lock()
	for _, id := range ids {
		r.fails[id] = text
	}
	r.mu.Unlock()
	inboxtest.Accept(r.t, r.ib, ids...)
	inboxtest.Process(r.t, r.ib)
}

// fixed makes the failing handler succeed.
func (r *rig) fixed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = map[string]string{}
}

func (r *rig) status(id string) models.HandlerStatus { return inboxtest.Status(r.t, r.ib, id, failing) }

// result is a command's exit code and output.
type result struct {
	t           testing.TB
	code        int
	out, errOut string
}

// run runs a command with empty standard input.
func (r *rig) run(args ...string) result { r.t.Helper(); return r.answer("", args...) }

// answer runs a command with this standard input.
func (r *rig) answer(input string, args ...string) result {
	r.t.Helper()
	return runWith(r.t, r.t.Context(), r.env, input, args...)
}

// done runs a command that must exit with 0.
func (r *rig) done(args ...string) result {
	r.t.Helper()
	out := r.run(args...)
	require.Zero(r.t, out.code, "%v: %s", args, out.errOut)
	return out
}

func runWith(t testing.TB, ctx context.Context, env map[string]string, input string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	sys := system{in: strings.NewReader(input), out: &out, errOut: &errOut,
		getenv: func(name string) string { return env[name] }}
	code := run(ctx, args, sys)
	return result{t: t, code: code, out: out.String(), errOut: errOut.String()}
}

// with returns the environment with changes.
func (r *rig) with(pairs ...string) map[string]string {
	env := maps.Clone(r.env)
	for i := 0; i < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return env
}

// json decodes the output of -o json.
func (r result) json(into any) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal([]byte(r.out), into), r.out)
}

// object decodes the output of -o json as an object.
func (r result) object() map[string]any {
	r.t.Helper()
	var v map[string]any
	r.json(&v)
	return v
}

// audit returns the audit entries, oldest first, as "actor action target".
func (r *rig) audit() []string {
	r.t.Helper()
	o, err := ops.New(r.d.DB)
	require.NoError(r.t, err)
	page, err := o.Audit(r.t.Context(), ops.AuditFilter{}, "", ops.MaxLimit)
	require.NoError(r.t, err)
	lines := []string{}
	for _, e := range page.Items {
		lines = append([]string{fmt.Sprintf("%s %s %s", e.Actor, e.Action, e.Target)}, lines...)
	}
	return lines
}

// reject stores a rejected record and returns its ID.
func (r *rig) reject(offset int64, key, value []byte) string {
	r.t.Helper()
	row := models.RejectedMessage{ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", offset), Channel: "c", Topic: "orders",
		Offset: offset, Timestamp: inboxtest.Noon,
		Key: key, Value: value, Headers: `[{"k":"h","v":"x"}]`, Reason: "invalid character '}'",
		RejectedAt: time.Now().UTC().Truncate(time.Microsecond)}
	require.NoError(r.t, r.d.DB.Create(&row).Error)
	return row.ID
}

// golden compares text with a golden file.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text, "go test . -update rewrites %s", file)
}

// writeJSON prints a value as -o json does.
func writeJSON(out io.Writer, v any) error {
	a := &app{system: system{out: out}, output: "json"}
	return a.writeStructured(v)
}
