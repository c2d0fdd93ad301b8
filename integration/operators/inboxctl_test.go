package operators

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// build builds inboxctl.
func build(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "inboxctl")
	command := exec.CommandContext(t.Context(), "go", "build", "-C", "../../cmd/inboxctl", "-o", program, ".")
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// terminal is where the operator types. It has inboxctl and the operators' role on the database.
type terminal struct {
	t       *testing.T
	program string
	env     []string
}

func newTerminal(t *testing.T, s *shop, program string) *terminal {
	t.Helper()
	return &terminal{t: t, program: program,
		env: append(os.Environ(), "INBOX_DSN="+s.d.OperatorDSN(t), "INBOX_ACTOR="+operator)}
}

// run runs inboxctl, which must succeed, and returns what it prints.
func (c *terminal) run(args ...string) string {
	c.t.Helper()
	command := exec.CommandContext(c.t.Context(), c.program, args...)
	command.Env = c.env
	out, err := command.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		require.NoError(c.t, err, "inboxctl %q: %s%s", args, out, exit.Stderr)
	}
	require.NoError(c.t, err)
	return string(out)
}

// read runs inboxctl and decodes what it prints as JSON.
func read[T any](c *terminal, args ...string) (v T) {
	c.t.Helper()
	out := c.run(append(args, "-o", "json")...)
	require.NoError(c.t, json.Unmarshal([]byte(out), &v), out)
	return v
}

// watch repeats a command until what it prints is what the operator waits for.
func watch[T any](c *terminal, what string, enough func(T) bool, args ...string) (v T) {
	c.t.Helper()
	inboxtest.Eventually(c.t, func() bool {
		v = read[T](c, args...)
		return enough(v)
	}, what)
	return v
}

// What inboxctl prints, as far as the operator reads it.
type (
	overview struct {
		Handlers []handlerLine
		Reasons  []reason
	}
	handlerLine struct {
		HandlerKey        string `json:"handler_key"`
		Obstacle          string
		Poisoned, Pending int
		Paused            bool
	}
	reason struct {
		Code, Detail string
		HandlerKey   string   `json:"handler_key"`
		MessageIDs   []string `json:"message_ids"`
	}
	failures     struct{ Groups []failureGroup }
	failureGroup struct {
		Fingerprint, Error string
		HandlerKey         string `json:"handler_key"`
		Poisoned           int
	}
	page[T any] struct{ Items []T }
	statusLine  struct {
		ID, State string
		Version   int
		MessageID string `json:"message_id"`
		LastError string `json:"last_error"`
	}
	message       struct{ Statuses []messageStatus }
	messageStatus struct {
		HandlerKey string `json:"handler_key"`
		State      string
	}
	consumer struct {
		Channel    string
		Partitions []partition
	}
	partition struct {
		Topic, Problem      string
		Partition, Position int
		AfterGap            bool `json:"after_gap"`
		Skippable           bool
	}
	rejectedLine struct{ ID, Channel, Reason string }
	auditLine    struct{ Actor, Target string }
	bulk         struct{ Matched, Done int }
	reread       struct {
		ID     string
		Result struct{ Read, Accepted, Duplicates int }
	}
)
