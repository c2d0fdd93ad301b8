package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// Demonstrate opens the shop, lets customers order, and closes it again. The
// ledger is nil if there is none to judge; otherwise it counts, whatever the error.
func Demonstrate(ctx context.Context, s Settings, out io.Writer) (ledger *Ledger, err error) {
	lasting := context.WithoutCancel(ctx) // taking down goes on after Ctrl-C
	ground, err := NewGround(ctx, s, out)
	if err != nil {
		return nil, failed(s, out, err)
	}
	defer func() {
		keep := scratch.Failed(ledger, err) && ctx.Err() == nil
		err = failed(s, out, errors.Join(err, ground.Close(lasting, keep)))
	}()
	running, err := ground.Open(ctx, s)
	if err != nil {
		return nil, err
	}
	var (
		notOK   int
		workErr error
	)
	if s.Smoke {
		notOK, workErr = smoke(ctx, s, running, out)
	} else {
		workErr = play(ctx, s, running, out)
	}
	if s.Smoke && ctx.Err() != nil {
		workErr = scratch.ErrInterrupted
	}
	if err := errors.Join(workErr, running.Close(lasting)); err != nil {
		return nil, err
	}
	books, err := ground.ReadBooks(lasting)
	if err != nil {
		return nil, err
	}
	books.Unread, books.Mails = running.Unread, int(running.Mailer.Sent())
	journal := running.Customers.Journal()
	ledger = Balance(journal, books)
	if s.Smoke {
		ledger.RequireDone(journal, books)
		what := "the databases hold what customers ordered, once"
		if !report(out, what, ledger.Err()) {
			notOK++
		}
	}
	ledger.NotOK = notOK
	return ledger, nil
}

// failed says so as a check does, where there are checks.
func failed(s Settings, out io.Writer, err error) error {
	if err != nil && s.Smoke {
		fmt.Fprintln(out, "FAILED to run:", err)
	}
	return err
}

// play says where everything is, and lets customers order until ctx ends.
func play(ctx context.Context, s Settings, r *Running, out io.Writer) error {
	fmt.Fprintf(out, "\nthe shop is open: %s\n\n", r.Site)
	fmt.Fprintf(out, "  account %-8s  password %s  may look and act\n", operator, s.Accounts.OperatorPassword)
	fmt.Fprintf(out, "  account %-8s  password %s  may look\n\n", viewer, s.Accounts.ViewerPassword)
	fmt.Fprintln(out, "Ctrl-C ends it")
	if err := r.Order(ctx); err != nil {
		return err
	}
	return r.Read(context.WithoutCancel(ctx))
}
