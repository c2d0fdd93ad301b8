package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	maxCents    = 10_000
	oneFailsIn  = 50  // one deposit in so many fails its first attempt
	maxInBatch  = 100 // are sent at once
	oneRepeatIn = 6   // one batch in so many is followed by one that was sent before
)

// MakeDeposits makes n deposits in the order in which they are to be sent.
func MakeDeposits(n, accounts int, random *rand.Rand) []Deposit {
	deposits, numbers := make([]Deposit, n), map[string]int{}
	for i := range deposits {
		account := fmt.Sprintf("account-%d", 1+random.IntN(accounts))
		numbers[account]++
		deposits[i] = Deposit{ID: fmt.Sprintf("deposit-%06d", i+1), Account: account, Cents: 1 + random.Int64N(maxCents),
			Number: numbers[account]}
		if random.IntN(oneFailsIn) == 0 {
			deposits[i].Failures = 1
		}
	}
	return deposits
}

// Sent is a deposit that the broker has acknowledged, and in which partition.
type Sent struct {
	Deposit
	Partition int
}

// Producer sends deposits. It runs in the parent process, which is never killed: what the shards do is judged by its
// journal. It is not safe for concurrent use.
type Producer struct {
	client  *kgo.Client
	topic   string
	random  *rand.Rand
	batches [][]Deposit
	journal map[string]Sent // by deposit ID, which is the message ID
}

// NewProducer returns a producer for the cluster's topic.
func NewProducer(c *Cluster, random *rand.Rand) *Producer {
	return &Producer{client: c.broker.Client, topic: c.topic, random: rand.New(rand.NewPCG(random.Uint64(), 1)),
		journal: map[string]Sent{}}
}

// Send sends deposits in batches of any size and waits until they are acknowledged. It repeats some batches, as after a
// lost response: the last one or any before, also from before a partition has moved.
func (p *Producer) Send(ctx context.Context, deposits []Deposit) error {
	for len(deposits) > 0 {
		batch := deposits[:min(1+p.random.IntN(maxInBatch), len(deposits))]
		deposits = deposits[len(batch):]
		p.batches = append(p.batches, batch)
		if err := p.produce(ctx, batch); err != nil {
			return err
		}
		if p.random.IntN(oneRepeatIn) == 0 {
			if err := p.produce(ctx, p.batches[p.random.IntN(len(p.batches))]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Producer) produce(ctx context.Context, batch []Deposit) error {
	records := make([]*kgo.Record, len(batch))
	for i, d := range batch {
		content, err := json.Marshal(d)
		if err != nil {
			return err
		}
		records[i] = &kgo.Record{Topic: p.topic, Key: []byte(d.Account), Value: content, Headers: []kgo.RecordHeader{
			{Key: "MessageId", Value: []byte(d.ID)}, {Key: "MessageType", Value: []byte("deposit.made")}}}
	}
	if err := p.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("send deposits: %w", err)
	}
	for i, d := range batch {
		p.journal[d.ID] = Sent{d, int(records[i].Partition)}
	}
	return nil
}
