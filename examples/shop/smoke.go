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
	retried  string // the message that retriesOne has retried
}

func newVisit(r *Running, s Settings, transport http.RoundTripper) *visit {
	browser := func(account, password string) *Browser { return NewBrowser(r.Site, transport, account, password) }
	return &visit{Running: r, patience: s.patience, anonymous: browser("", ""),
		stranger: browser(operator, s.Accounts.OperatorPassword+"x"),
		viewer:   browser(viewer, s.Accounts.ViewerPassword),
		operator: browser(operator, s.Accounts.OperatorPassword)}
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

// smoke lets customers order for a while and checks what is seen meanwhile and afterwards. It counts the
// checks that have failed; an error is whatever kept it from checking.
func smoke(ctx context.Context, s Settings, r *Running, out io.Writer) (failed int, err error) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	v := newVisit(r, s, transport)
	checkAll := func(ctx context.Context, checks []Check) {
		for _, c := range checks {
			failed += report(out, c.what, c.is(v, ctx))
		}
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
		checkAll(ctx, whileOrdering)
		return nil
	})
	if err != nil {
		return failed, err
	}
	completed, poisoned, err := r.Settle(ctx)
	if err == nil && (completed == 0 || poisoned == 0) {
		err = errors.New("some must be of each: a mail server is broken")
	}
	failed += report(out, fmt.Sprintf("nothing is left to do: %d completed, %d poisoned", completed, poisoned), err)
	checkAll(ctx, afterwards)
	return failed, ctx.Err()
}

// report prints a check's line, and counts it if it has failed.
func report(out io.Writer, what string, err error) (failed int) {
	if err != nil {
		fmt.Fprintf(out, "FAILED %s: %v\n", what, err)
		return 1
	}
	fmt.Fprintln(out, "ok    ", what)
	return 0
}
