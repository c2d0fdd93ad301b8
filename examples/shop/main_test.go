package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/internal/demotest"
)

func TestMain(m *testing.M) { demotest.Main(m, main) }

// brief lets customers order 40 times.
var brief = []string{"-smoke", "-for", "2s", "-rate", "20"}

var lastLine = regexp.MustCompile(`(?:^|\n)lost 0, doubled 0, out_of_order 0, poisoned (\d+), completed (\d+)\n$`)

// requireAllOK fails unless all checks are ok and the last line tells of work.
func requireAllOK(t *testing.T, out string) {
	t.Helper()
	require.NotContains(t, out, "FAILED")
	for _, checks := range [][]Check{whileOrdering, afterwards,
		{{what: "nothing is left to do: "}, {what: "the databases hold what customers ordered, once\n"}}} {
		for _, c := range checks {
			require.Contains(t, out, "\nok     "+c.what)
		}
	}
	figures := lastLine.FindStringSubmatch(out)
	require.NotNil(t, figures, out)
	for _, figure := range figures[1:] {
		n, err := strconv.Atoi(figure)
		require.NoError(t, err)
		require.Positive(t, n, out)
	}
}

func TestSmokeFindsEverythingOK(t *testing.T) {
	demotest.OnEach(t, func(t *testing.T, server string) {
		requireAllOK(t, demotest.Balances(t, command.Run, append(demotest.On(server), brief...)...))
	})
}

func TestLedgerBalancesWhenProcessesAreKilled(t *testing.T) {
	demotest.OnEach(t, func(t *testing.T, server string) {
		out := demotest.Balances(t, command.Run, append(demotest.On(server), "-crash", "2", "-seed", "1")...)
		require.Regexp(t, `\nlost 0, doubled 0, out_of_order 0, poisoned \d+, completed \d+, kills 2\n$`, out)
	})
}

func TestCommandNeedsNothingButGo(t *testing.T) {
	requireAllOK(t, demotest.GoRun(t, "shop", brief...))
}

func TestInterruptedSmokeLeavesNothingBehind(t *testing.T) {
	demotest.RequireInterruptible(t, command.Run, func(line string) bool {
		return strings.HasPrefix(line, "ok ")
	}, brief...)
}

// Whoever plays ends it by Ctrl-C, in the middle of everything.
func TestInterruptedPlayPrintsDatabaseContents(t *testing.T) {
	temporary := demotest.Temporary(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, screen := io.Pipe()
	status := make(chan int, 1)
	go func() {
		status <- command.Run(ctx, []string{"-addr", "127.0.0.1:0", "-rate", "50", "-operator-password", "open",
			"-viewer-password", "look"}, screen, t.Output())
		_ = screen.Close() // never fails
	}()
	var printed bytes.Buffer
	site := readUntil(t, io.TeeReader(out, &printed),
		regexp.MustCompile(`the shop is open: (\S+)\n(?s:.*)Ctrl-C ends it\n`))
	require.Contains(t, printed.String(), "account operator  password open")
	require.Contains(t, printed.String(), "account viewer    password look")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	browser := NewBrowser(site, transport, viewer, "look")
	require.Eventually(t, func() bool {
		_, err := browser.Page(ctx, "shipping/inbox/messages?state=poisoned", "/confirmed")
		return err == nil
	}, 2*time.Minute, 50*time.Millisecond)
	cancel()
	rest, err := io.ReadAll(out)
	require.NoError(t, err)
	require.Equal(t, demo.Balanced, <-status, "%s", rest)
	require.Regexp(t, lastLine, string(rest))
	demotest.RequireEmpty(t, temporary)
}

// readUntil reads what is printed until it matches, and returns the match.
func readUntil(t *testing.T, out io.Reader, wanted *regexp.Regexp) string {
	t.Helper()
	var all []byte
	for part := make([]byte, 4096); ; {
		n, err := out.Read(part)
		require.NoError(t, err, "%s", all)
		all = append(all, part[:n]...)
		if found := wanted.FindSubmatch(all); found != nil {
			return string(found[1])
		}
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	demotest.RequireRefused(t, command.Run, map[string][]string{
		"-rate = 0: must be 1 to 100":                   {"-rate", "0"},
		"-for = 1ms: must be 1s to 1h":                  {"-smoke", "-for", "1ms"},
		`-addr = "8080": must be a port`:                {"-addr", "8080"},
		`-addr = "0.0.0.0:80": must be this machine's`:  {"-addr", "0.0.0.0:80"},
		`-addr = "example.com:1": must be this machine`: {"-addr", "example.com:1"},
		"-smoke and -crash: choose one":                 {"-smoke", "-crash", "1"},
		"-crash = -1: must be 0 to 50":                  {"-crash", "-1"},
		`unknown argument "please"`:                     {"please"},
	})
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	s, _, err := command.Parse(nil, io.Discard)
	require.NoError(t, err)
	require.Len(t, s.Accounts.OperatorPassword, passwordLength)
	require.Len(t, s.Accounts.ViewerPassword, passwordLength)
	require.NotEqual(t, s.Accounts.OperatorPassword, s.Accounts.ViewerPassword)
	other, _, err := command.Parse([]string{"-smoke"}, io.Discard)
	require.NoError(t, err)
	require.NotEqual(t, s.Accounts, other.Accounts, "random per run")
	require.Equal(t, "127.0.0.1:0", other.Address)
	s.Accounts = Accounts{}
	require.Equal(t, Settings{Address: "127.0.0.1:8080", Rate: 4, For: 10 * time.Second, patience: 2 * time.Minute}, s)
}

func TestShopThatCannotOpenReportsFailure(t *testing.T) {
	temporary := demotest.Temporary(t)
	var stdout, stderr bytes.Buffer
	status := command.Run(t.Context(), []string{"-smoke", "-postgres",
		"postgres://nobody@127.0.0.1:1/nothing?connect_timeout=1"}, &stdout, &stderr)
	require.Equal(t, demo.Unbalanced, status)
	require.Contains(t, stdout.String(), "FAILED to run: ")
	require.NotContains(t, stdout.String(), "ok ")
	demotest.RequireEmpty(t, temporary)
}
