package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

const (
	maxCents    = 10_000 // the largest amount of a transfer
	oneFailsIn  = 50     // one transfer in so many fails its first attempts,
	maxFailures = 3      // and this often at most
	maxInBatch  = 100    // are accepted at once
	oneRepeatIn = 8      // one batch in so many is followed by one that was accepted before
	maxAccepts  = 5      // how often a batch is tried
)

// OpeningBalance is what each account has at first: nine tenths of what its transfers are likely to
// add up to, so that the last ones are refused unless the amount is small enough for what is left. Which
// ones depends on the order in which the transfers are booked.
func OpeningBalance(transfers, accounts int) int64 {
	return int64(transfers) * maxCents / 2 * 9 / 10 / int64(accounts)
}

// MakeTransfers makes n transfers between accounts in the order in which they are to be accepted.
func MakeTransfers(n, accounts int, random *rand.Rand) []Transfer {
	transfers := make([]Transfer, n)
	numbers := make([]int, accounts+1)
	for i := range transfers {
		from, to := 1+random.IntN(accounts), 1+random.IntN(accounts-1)
		if to >= from {
			to++
		}
		numbers[from]++
		transfers[i] = Transfer{ID: fmt.Sprintf("transfer-%06d", i+1), From: from, To: to,
			Cents: 1 + random.Int64N(maxCents), Number: numbers[from]}
		if random.IntN(oneFailsIn) == 0 {
			transfers[i].Failures = 1 + random.IntN(maxFailures)
		}
	}
	return transfers
}

// Producer accepts transfers one batch after the other, which defines their order. It runs in the parent
// process, which is never killed: what the workers do is judged by it. It is not safe for concurrent use.
type Producer struct {
	inbox  *inbox.Inbox
	random *rand.Rand
	sent   [][]handler.RawMessage // batches that are accepted

	repeated int // transfers accepted again
}

// NewProducer returns a producer, and creates the inbox's tables. Its inbox is not started: it accepts
// messages for its handler, which never runs here.
func NewProducer(ctx context.Context, db *gorm.DB, random *rand.Rand) (*Producer, error) {
	ib, err := NewInbox(db, &Bank{}, 1, zap.NewNop())
	if err != nil {
		return nil, err
	}
	return &Producer{inbox: ib, random: random}, ib.Migrate(ctx)
}

// Send accepts transfers in batches of any size, and repeats some batches: the last one, as after a lost
// response, or any before.
func (p *Producer) Send(ctx context.Context, transfers []Transfer) error {
	for len(transfers) > 0 {
		batch := make([]handler.RawMessage, min(1+p.random.IntN(maxInBatch), len(transfers)))
		for i := range batch {
			batch[i] = message(transfers[i])
		}
		transfers = transfers[len(batch):]
		if err := p.accept(ctx, batch); err != nil {
			return err
		}
		p.sent = append(p.sent, batch)
		if p.random.IntN(oneRepeatIn) > 0 {
			continue
		}
		again := batch
		if p.random.IntN(2) == 0 {
			again = p.sent[p.random.IntN(len(p.sent))]
		}
		if err := p.accept(ctx, again); err != nil {
			return err
		}
		p.repeated += len(again)
	}
	return nil
}

// message returns a transfer's message. Its ordering key, the paying account, names its lane.
func message(t Transfer) handler.RawMessage {
	content, err := json.Marshal(t)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return handler.RawMessage{Channel: payments, ID: t.ID, Type: transferRequested, Source: "/bank",
		ContentType: "application/json", Content: content, OrderingKey: []byte(strconv.Itoa(t.From))}
}

// accept accepts a batch. After an error it is unknown whether the batch was stored, so it is accepted
// again, before any later one: known transfers are recognised, and the order stays.
func (p *Producer) accept(ctx context.Context, batch []handler.RawMessage) error {
	for try := 1; ; try++ {
		results, err := p.inbox.Accept(ctx, batch...)
		if err == nil {
			for _, r := range results {
				if r.Err != nil {
					return r.Err
				}
			}
			return nil
		}
		if try == maxAccepts || demo.Pause(ctx, time.Duration(try)*100*time.Millisecond) != nil {
			return err
		}
	}
}
