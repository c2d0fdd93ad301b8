package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// Demonstrate opens the shop, lets customers order, closes it again, and judges what is left.
func Demonstrate(ctx context.Context, env *demo.Environment, s Settings) (ledger *demo.Ledger, err error) {
	defer func() {
		if err != nil && s.Smoke {
			env.Screen.Say("FAILED to run: %v", err)
		}
	}()
	r, err := Open(ctx, env, s)
	if err != nil {
		return nil, err
	}
	failed := 0
	if s.Smoke {
		if failed, err = smoke(ctx, s, r, env.Out); ctx.Err() != nil {
			err = demo.ErrInterrupted
		}
	} else {
		err = play(ctx, s, r, env.Screen)
	}
	lasting := context.WithoutCancel(ctx) // Ctrl-C ends the orders
	if err := errors.Join(err, r.Stop(lasting)); err != nil {
		return nil, err
	}
	result, err := r.ReadResult(lasting)
	if err != nil {
		return nil, err
	}
	ledger = Balance(r.Customers.Journal(), result, s.Smoke)
	if s.Smoke && !report(env.Out, "the databases hold what customers ordered, once", firstProblem(ledger)) {
		failed++
	}
	if failed > 0 {
		ledger.Problem("%d checks have failed", failed)
	}
	return ledger, nil
}

// firstProblem is nil if the ledger balances.
func firstProblem(l *demo.Ledger) error {
	if l.Balanced() {
		return nil
	}
	return fmt.Errorf("%d problems, the first: %s", len(l.Problems), l.Problems[0])
}

// play says where everything is, and lets customers order until ctx ends.
func play(ctx context.Context, s Settings, r *Running, screen *demo.Screen) error {
	screen.Say("\nthe shop is open: %s\n", r.Site)
	screen.Say("  account %-8s  password %s  may see and act", operator, s.Accounts.OperatorPassword)
	screen.Say("  account %-8s  password %s  may see\n", viewer, s.Accounts.ViewerPassword)
	screen.Say("Ctrl-C ends it")
	if err := r.Order(ctx); err != nil {
		return err
	}
	return r.Drain(context.WithoutCancel(ctx))
}
