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

// Deposits makes deposits in the order in which they are to be sent.
type Deposits struct {
	Accounts int
	Random   *rand.Rand

	made    int
	numbers map[string]int // by account
}

// Next makes the next n deposits.
func (d *Deposits) Next(n int) []Deposit {
	if d.numbers == nil {
		d.numbers = map[string]int{}
	}
	deposits := make([]Deposit, n)
	for i := range deposits {
		account := fmt.Sprintf("account-%d", 1+d.Random.IntN(d.Accounts))
		d.made++
		d.numbers[account]++
		deposits[i] = Deposit{ID: fmt.Sprintf("deposit-%06d", d.made), Account: account, Cents: 1 + d.Random.Int64N(maxCents),
			Number: d.numbers[account]}
		if d.Random.IntN(oneFailsIn) == 0 {
			deposits[i].Failures = 1
		}
	}
	return deposits
}

// Sent is a deposit that the broker has acknowledged, and where: at first, if it was sent more than once.
type Sent struct {
	Deposit
	Partition int
	Offset    int64
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

// Repeat sends some deposits again that are in a partition before an offset. It returns how many.
func (p *Producer) Repeat(ctx context.Context, partition int, before int64) (int, error) {
	var again []Deposit
	for _, sent := range p.journal {
		if sent.Partition == partition && sent.Offset < before && len(again) < maxInBatch {
			again = append(again, sent.Deposit)
		}
	}
	return len(again), p.produce(ctx, again)
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
		if _, again := p.journal[d.ID]; !again {
			p.journal[d.ID] = Sent{d, int(records[i].Partition), records[i].Offset}
		}
	}
	return nil
}
