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
	if err := ib.Migrate(ctx); err != nil {
		return nil, err
	}
	return &Producer{inbox: ib, random: random}, nil
}

// mostInBatch are accepted at once.
const mostInBatch = 100

// One batch in so many is followed by one that was accepted before.
const oneRepeatIn = 8

// Send accepts transfers in batches of any size, and repeats some batches: the last one, as after a lost
// response, or any before.
func (p *Producer) Send(ctx context.Context, transfers []Transfer) error {
	for len(transfers) > 0 {
		batch := make([]handler.RawMessage, min(1+p.random.IntN(mostInBatch), len(transfers)))
		for i := range batch {
			var err error
			if batch[i], err = message(transfers[i]); err != nil {
				return err
			}
		}
		transfers = transfers[len(batch):]
		if err := p.accept(ctx, batch); err != nil {
			return err
		}
		p.sent = append(p.sent, batch)
		if p.random.IntN(oneRepeatIn) > 0 {
			continue
		}
		again := p.sent[len(p.sent)-1]
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
func message(t Transfer) (handler.RawMessage, error) {
	content, err := json.Marshal(t)
	if err != nil {
		return handler.RawMessage{}, fmt.Errorf("encode transfer %s: %w", t.ID, err)
	}
	return handler.RawMessage{
		Channel: payments, ID: t.ID, Type: transferRequested, Source: "/bank", ContentType: "application/json",
		Content:     content,
		OrderingKey: []byte(strconv.Itoa(t.From)),
	}, nil
}

// mostAccepts is how often a batch is tried.
const mostAccepts = 5

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
		if try == mostAccepts {
			return err
		}
		if demo.Pause(ctx, time.Duration(try)*100*time.Millisecond) != nil {
			return err
		}
	}
}
