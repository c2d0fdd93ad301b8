package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
)

// Consume handles deliveries until ctx ends or the transport is gone.
func Consume(ctx context.Context, address string, handle handleFunc, kill func()) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		if ctx.Err() != nil {
			return nil // begun at the last moment, and told to stop before it was there
		}
		return fmt.Errorf("transport: %w", err)
	}
	defer conn.Close()
	unwatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer unwatch()
	deliveries := json.NewDecoder(conn)
	for {
		var d Delivery
		if _, err := fmt.Fprintln(conn, "next"); err != nil {
			return nil
		}
		if err := deliveries.Decode(&d); err != nil {
			return nil // the transport or ctx has ended
		}
		answer := handleDelivery(ctx, d, handle, func() {
			fmt.Fprintln(conn, dying)
			kill()
		})
		if _, err := fmt.Fprintln(conn, answer); err != nil {
			return nil
		}
	}
}

// handleTimeout is how long a delivery may take.
const handleTimeout = 30 * time.Second

func handleDelivery(ctx context.Context, d Delivery, handle handleFunc, die func()) (answer string) {
	ctx, cancel := context.WithTimeout(withFate(ctx, d.DieAt, die), handleTimeout)
	defer cancel()
	reach(ctx, beforeBody)
	err := handle(ctx, d.Payment)
	if err != nil {
		how := refused
		if errors.Is(err, idempotent.ErrLost) {
			how = lostClaim
		}
		return how + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	reach(ctx, afterAll)
	return acknowledged
}
