package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// visit is what the checks use: the site as browsers see it, and the databases to compare it with.
type visit struct {
	*Running
	anonymous, stranger, viewer, operator *Browser

	patience time.Duration
	retried  string // the message that retryOne has retried
}

func newVisit(r *Running, s Settings, transport http.RoundTripper) (*visit, error) {
	v := &visit{Running: r, patience: s.patience}
	for _, b := range []struct {
		browser           **Browser
		account, password string
	}{{&v.anonymous, "", ""}, {&v.stranger, operator, s.Accounts.OperatorPassword + "x"},
		{&v.viewer, viewer, s.Accounts.ViewerPassword}, {&v.operator, operator, s.Accounts.OperatorPassword}} {
		var err error
		if *b.browser, err = NewBrowser(r.Site, transport, b.account, b.password); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// eventually repeats a check until it succeeds, or returns its error when patience ends.
func (v *visit) eventually(ctx context.Context, is func(ctx context.Context) error) error {
	for until := time.Now().Add(v.patience); ; {
		err := is(ctx)
		if err == nil || time.Now().After(until) || demo.Pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// Check is one thing that must hold.
type Check struct {
	what string
	is   func(v *visit, ctx context.Context) error
}

// whileOrdering are checked while customers order, afterwards when nothing is left to do. Each check relies
// on those before it.
var (
	whileOrdering = []Check{
		{"dashboards refuse who does not sign in", (*visit).refusesStrangers},
		{"dashboards show what their inboxes hold", (*visit).showsPages},
		{"a viewer sees everything and may not act", (*visit).limitsViewers},
		{"probes answer for both inboxes", (*visit).answersProbes},
	}
	afterwards = []Check{
		{"metrics of both inboxes agree with the databases", (*visit).agreesWithMetrics},
		{"the mailer is fixed on the front page", (*visit).fixesMailer},
		{"a poisoned message is retried from the dashboard, and completed", (*visit).retriesOne},
		{"the audit names actor, action and target", (*visit).audits},
	}
)

// smoke lets customers order for a while and checks what is seen meanwhile and afterwards. It counts the
// checks that have failed; an error is whatever kept it from checking.
func smoke(ctx context.Context, s Settings, r *Running, out io.Writer) (failed int, err error) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	v, err := newVisit(r, s, transport)
	if err != nil {
		return 0, err
	}
	ordering, enough := context.WithCancel(ctx)
	defer enough()
	err = demo.Concurrently(ctx, func(context.Context) error {
		return r.Order(ordering)
	}, func(ctx context.Context) error {
		defer enough()
		if err := demo.Pause(ctx, s.For); err != nil {
			return err
		}
		failed = checkAll(ctx, v, whileOrdering, out)
		return nil
	})
	if err != nil {
		return failed, err
	}
	completed, poisoned, err := r.Settle(ctx)
	if err == nil && (completed == 0 || poisoned == 0) {
		err = errors.New("some must be of each: a mail server is broken")
	}
	if !report(out, fmt.Sprintf("nothing is left to do: %d completed, %d poisoned", completed, poisoned), err) {
		failed++
	}
	return failed + checkAll(ctx, v, afterwards, out), nil
}

func checkAll(ctx context.Context, v *visit, checks []Check, out io.Writer) (failed int) {
	for _, c := range checks {
		if !report(out, c.what, c.is(v, ctx)) {
			failed++
		}
	}
	return failed
}

// report prints a check's line.
func report(out io.Writer, what string, err error) (ok bool) {
	if err != nil {
		fmt.Fprintf(out, "FAILED %s: %v\n", what, err)
		return false
	}
	fmt.Fprintln(out, "ok    ", what)
	return true
}
