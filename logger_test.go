package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// runFailing runs a message with a handler that fails, in an inbox by New or by Module with more of the graph.
func runFailing(t *testing.T, withFx bool, logger *zap.Logger, more ...fx.Option) {
	t.Helper()
	db := fxtest.OpenDB(t)
	options := []inbox.Option{
		inbox.Configure(func(o *inbox.Options) { o.Logger, o.Migrate, o.UnnamedDB = logger, true, true }),
		inboxtest.Handlers(inboxtest.Do("pack-order", func(context.Context, inboxtest.Bytes) error {
			return errors.New("out of boxes")
		}))}
	var ib *inbox.Inbox
	if withFx {
		var kit *fxtest.Kit
		fxtest.App(t, append(more, fx.NopLogger, fx.Supply(db), inbox.Module("orders", options...), fxtest.Manual(),
			fxtest.Use(t, "orders", &kit))...)
		ib = kit.Inbox
	} else {
		var err error
		ib, err = inbox.New("orders", db, options...)
		require.NoError(t, err)
		require.NoError(t, ib.Migrate(t.Context()))
	}
	_, err := ib.Accept(t.Context(), inboxtest.Message("m-1"))
	require.NoError(t, err)
	_, err = ib.ProcessPending(t.Context())
	require.NoError(t, err)
}

// printed runs the calling test in a process of its own and returns what it prints to its standard error. In that
// process it returns false.
func printed(t *testing.T, variable string, values ...string) (map[string]string, bool) {
	t.Helper()
	if os.Getenv(variable) != "" {
		return nil, false
	}
	all := map[string]string{}
	for _, value := range values {
		var stderr bytes.Buffer
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), variable+"="+value)
		child.Stderr = &stderr
		require.NoError(t, child.Run(), stderr.String())
		all[value] = stderr.String()
	}
	return all, true
}

// TestWithoutALoggerWarningsGoToStandardError proves contract 12.
func TestWithoutALoggerWarningsGoToStandardError(t *testing.T) {
	const variable = "INBOX_TEST_LOGGER"
	all, parent := printed(t, variable, "new", "module", "silent new", "silent module")
	if !parent {
		var logger *zap.Logger
		kind, silent := strings.CutPrefix(os.Getenv(variable), "silent ")
		if silent {
			logger = zap.NewNop()
		}
		runFailing(t, kind == "module", logger)
		return
	}
	for _, kind := range []string{"new", "module"} {
		require.Contains(t, all[kind], "\twarn\tinbox: attempt failed\t", kind)
		require.Contains(t, all[kind], `"inbox": "orders"`, kind)
		require.Contains(t, all[kind], "out of boxes", kind)
		require.NotContains(t, all[kind], "\tinfo\t", kind)
		require.Empty(t, all["silent "+kind], "zap.NewNop() is a logger")
	}
}

// TestSlogLoggerGetsTheLines proves contract 10.2 and 12.
func TestSlogLoggerGetsTheLines(t *testing.T) {
	for name, run := range map[string]func(*slog.Logger){
		"option of New":    func(log *slog.Logger) { runFailing(t, false, inbox.Slog(log)) },
		"option of Module": func(log *slog.Logger) { runFailing(t, true, inbox.Slog(log)) },
		"Fx graph":         func(log *slog.Logger) { runFailing(t, true, nil, fx.Supply(log)) },
	} {
		var out bytes.Buffer
		run(slog.New(slog.NewTextHandler(&out, nil)))
		require.Contains(t, out.String(), `level=WARN msg="inbox: attempt failed" inbox=orders`, name)
		require.Contains(t, out.String(), `error="out of boxes"`, name)
	}
	require.Nil(t, inbox.Slog(nil))
}

func TestZapLoggerOfTheGraphComesBeforeItsSlogLogger(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	var out bytes.Buffer
	runFailing(t, true, nil, fx.Supply(zap.New(core), slog.New(slog.NewTextHandler(&out, nil))))
	require.Equal(t, 1, logs.FilterMessage("inbox: attempt failed").Len())
	require.Empty(t, out.String())
}
