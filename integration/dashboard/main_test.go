// Package dashboard tests the dashboard with a real browser: that it renders, that every action
// works by clicking in every role, and that stored texts are not executed.
package dashboard

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/integration/servers"
	"github.com/gorm-inbox/inbox/internal/testenv"
)

const (
	patience = testenv.Patience // the timeout of one wait
	lifetime = 3 * patience     // the lifetime of a tab
)

// chromium is the package's browser. It starts on first use.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path, err := lookUp("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless-shell")
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WindowSize(1360, 900),
		chromedp.WSURLReadTimeout(patience), chromedp.Flag("force-color-profile", "srgb"))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // as root it does not run with a sandbox
	}
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	browser, endBrowser := chromedp.NewContext(allocator)
	closeBrowser = func() { endBrowser(); endAllocator() }
	if err := chromedp.Run(browser); err != nil {
		return nil, &servers.Missing{Server: "Chromium", Why: path + " does not start", Install: "chromium", Cause: err}
	}
	return browser, nil
})

var closeBrowser = func() {}

func lookUp(names ...string) (path string, err error) {
	for _, name := range names {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", &servers.Missing{Server: "Chromium", Why: "no chromium or google-chrome on the PATH", Install: "chromium"}
}

func TestMain(m *testing.M) {
	status := m.Run()
	closeBrowser()
	os.Exit(status)
}

// tab is a tab in a browser window of its own. It records errors.
type tab struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	problems []string // exceptions, refused loads, errors on the console
	dialogs  []string
	hostile  bool // it visits sites on which errors are expected
}

// open opens a tab without cookies. When the test ends, there must be no errors that the test has
// not read.
func open(t testing.TB) *tab {
	t.Helper()
	browser, err := chromium()
	if err != nil {
		t.Log(err)
	}
	testenv.LeaveOutIf(t, err)
	// Open a window, because a new profile has none in which to open a tab.
	var window target.ID
	require.NoError(t, chromedp.Run(browser, chromedp.ActionFunc(func(ctx context.Context) error {
		onBrowser := cdp.WithExecutor(ctx, chromedp.FromContext(ctx).Browser)
		profile, err := target.CreateBrowserContext().WithDisposeOnDetach(true).Do(onBrowser)
		if err == nil {
			window, err = target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).WithWidth(1360).WithHeight(900).Do(onBrowser)
		}
		return err
	})))
	ctx, closeTab := chromedp.NewContext(browser, chromedp.WithTargetID(window))
	ctx, cancel := context.WithTimeout(ctx, lifetime)
	b := &tab{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, b.listen)
	require.NoError(t, chromedp.Run(ctx, runtime.Enable(), log.Enable(), page.Enable()))
	t.Cleanup(func() {
		cancel()
		closeTab()
		if problems := b.wrong(); !b.hostile {
			require.Empty(t, problems)
		}
		require.Empty(t, b.dialogs)
	})
	return b
}

func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError || e.Entry.Source == log.SourceSecurity {
			b.problems = append(b.problems, e.Entry.Text+" "+e.Entry.URL)
		}
	case *page.EventJavascriptDialogOpening:
		b.dialogs = append(b.dialogs, e.Message)
	}
}

// wrong returns the recorded errors and clears them.
func (b *tab) wrong() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	problems := b.problems
	b.problems = nil
	return problems
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Run(b.ctx, actions...))
}

// visit loads an address and waits until the page is complete.
func (b *tab) visit(address string) {
	b.t.Helper()
	b.run(chromedp.Navigate(address))
}

// evaluate runs a script of the test in the page.
func evaluate[T any](b *tab, script string) (result T) {
	b.t.Helper()
	b.run(chromedp.Evaluate(script, &result))
	return result
}

// text returns the page's visible text.
func (b *tab) text() string { b.t.Helper(); return evaluate[string](b, "document.body.innerText") }

// click clicks the element that a selector finds and waits for the resulting page.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.run(chromedp.Evaluate("window.clicked = true", nil), chromedp.Click(selector, chromedp.ByQuery))
	b.await("!window.clicked && document.readyState === 'complete'", "the page after a click on "+selector)
}

// await waits for a condition of the page.
func (b *tab) await(condition, what string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		var holds bool
		return chromedp.Run(b.ctx, chromedp.Evaluate(condition, &holds)) == nil && holds
	}, patience, 20*time.Millisecond, what)
}

// photos is the directory for pictures.
var photos = sync.OnceValues(func() (string, error) {
	directory := filepath.Join(os.TempDir(), "inbox-dashboard-pictures")
	return directory, os.MkdirAll(directory, 0o755)
})

// photograph saves a picture of the whole page.
func (b *tab) photograph(name string) {
	b.t.Helper()
	directory, err := photos()
	require.NoError(b.t, err)
	var picture []byte
	b.run(chromedp.FullScreenshot(&picture, 100))
	require.NoError(b.t, os.WriteFile(filepath.Join(directory, name+".png"), picture, 0o644))
}
