package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// Consumer is a channel's Kafka consumer in one living worker, as of the worker's last heartbeat.
type Consumer struct {
	WorkerID string `json:"-"`
	Host     string `json:"-"`
	PID      int    `json:"-"`
	// SilentFor is the time since that heartbeat, by the server's clock if there is one.
	SilentFor time.Duration `json:"-"`

	Channel string `json:"channel"`
	GroupID string `json:"group"`
	// State is waiting, joining, running, stopping or another state of kafkaconsumer.State, since Since.
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Lag is the sum over all of its partitions, in offsets. It is -1 while one is unknown.
	Lag int64 `json:"lag"`
	// Unrouted is how many messages of its channel no handler took, since its process made the inbox.
	Unrouted int64 `json:"unrouted,omitempty"`
	// Problem is why it does not consume, commit offsets or publish copies, without the problems of single partitions.
	// It is redacted, and empty if it does.
	Problem string `json:"problem,omitempty"`
	// Partitions are the most important ones: halted ones first, then those with a problem, then those with the largest
	// lag, 100 of a worker at most. Unlisted counts the others.
	Partitions []ConsumedPartition `json:"partitions,omitempty"`
	Unlisted   int                 `json:"unlisted,omitempty"`
}

// ConsumedPartition is a partition that is assigned to a Consumer.
type ConsumedPartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// State is starting, fetching, accepting, failing or halted.
	State string `json:"state"`
	// Position is the next offset to accept: the one before which a halted partition is halted. Committed is the
	// group's committed offset. Lag is in offsets. Each is -1 while unknown.
	Position  int64 `json:"position"`
	Committed int64 `json:"committed"`
	Lag       int64 `json:"lag"`
	// Problem is why it is halted, or why fetching fails, since Since. It is redacted, and empty if there is none.
	Problem string    `json:"problem,omitempty"`
	Since   time.Time `json:"at"`
	// Halted means that it waits for ResumePartition or, if Skippable, for SkipRecord. AfterGap means that resuming
	// leaves out records that are gone (contract 7.10).
	Halted    bool `json:"halted,omitempty"`
	Skippable bool `json:"skippable,omitempty"`
	AfterGap  bool `json:"after_gap,omitempty"`
	// Request is an operator's request for this halt that the consumer has not carried out yet; nil if there is none.
	// Its Decision is "resume" or "skip".
	Request *models.PartitionRequest `json:"-"`
}

// PartitionRef names the halt of a partition by the offset before which it is halted.
type PartitionRef struct {
	Channel   string
	Topic     string
	Partition int32
	Offset    int64
	// AfterGap is the ConsumedPartition's AfterGap as its reader saw it. ResumePartition returns ErrStale if the
	// partition is halted for another reason by now: a gap is only passed by someone who knows of it.
	AfterGap bool `json:"-"`
}

func (at PartitionRef) check() error {
	if err := checkTexts(argument{"channel", at.Channel, 1, columns.MaxChannel},
		argument{"topic", at.Topic, 1, columns.MaxTopic}); err != nil {
		return err
	}
	if at.Partition < 0 || at.Offset < 0 {
		return badInput("partition", "%d at offset %d: both must be 0 or more", at.Partition, at.Offset)
	}
	return nil
}

// maxConsuming bounds how many workers' consumers are read.
const maxConsuming = 500

// Consumers lists the consumers of all living workers, 500 workers at most, sorted by channel.
func (o processes) Consumers(ctx context.Context) ([]Consumer, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	consumers, err := o.consumers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list consumers: %w", err)
	}
	return consumers, nil
}

func (o processes) consumers(ctx context.Context) ([]Consumer, error) {
	workers, err := o.Workers(ctx)
	if err != nil {
		return nil, err
	}
	consumers, err := o.reportedConsumers(ctx, workers)
	if err != nil {
		return nil, err
	}
	requests, err := o.requests(ctx)
	if err != nil {
		return nil, err
	}
	for i := range consumers {
		c := &consumers[i]
		of := redact.Value{Channel: c.Channel}
		c.Problem = o.redactor.Error(of, c.Problem)
		for j := range c.Partitions {
			p := &c.Partitions[j]
			p.Problem = o.redactor.Error(of, p.Problem)
			at := PartitionRef{Channel: c.Channel, Topic: p.Topic, Partition: p.Partition, Offset: p.Position}
			if r, ok := requests[at]; ok && p.Halted {
				p.Request = &r
			}
		}
	}
	slices.SortStableFunc(consumers, func(a, b Consumer) int {
		return cmp.Or(cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.Host, b.Host), cmp.Compare(a.WorkerID, b.WorkerID))
	})
	return consumers, nil
}

// reportedConsumers returns the consumers as the living ones of these workers have stored them.
func (o processes) reportedConsumers(ctx context.Context, workers []Worker) (consumers []Consumer, err error) {
	alive := map[string]Worker{}
	for _, w := range workers {
		if w.Alive {
			alive[w.ID] = w
		}
	}
	stored, err := o.store.StoredConsumers(ctx, o.pool(ctx), maxConsuming)
	if err != nil {
		return nil, err
	}
	for _, of := range stored {
		w, lives := alive[of.WorkerID]
		if !lives || of.Consumers == "" {
			continue
		}
		var own []Consumer
		if err := json.Unmarshal([]byte(of.Consumers), &own); err != nil {
			return nil, fmt.Errorf("consumers of worker %s: %w", of.WorkerID, err)
		}
		for _, c := range own {
			c.WorkerID, c.Host, c.PID, c.SilentFor = w.ID, w.Host, w.PID, w.SilentFor
			consumers = append(consumers, c)
		}
	}
	return consumers, nil
}

// requestsLast is how long consumers carry a request out (contract 7.10).
const requestsLast = time.Hour

// requests returns the requests that are not carried out, by the halts that they are for.
func (o processes) requests(ctx context.Context) (map[PartitionRef]models.PartitionRequest, error) {
	now, err := o.Now(ctx)
	if err != nil {
		return nil, err
	}
	found, err := o.store.AllPartitionRequests(ctx, o.pool(ctx), now.Add(-requestsLast), maxListed)
	requests := make(map[PartitionRef]models.PartitionRequest, len(found))
	for _, r := range found {
		if r.Decision == columns.DecisionContinue {
			r.Decision = columns.DecisionResume
		}
		requests[PartitionRef{Channel: r.Channel, Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}] = r
	}
	return requests, err
}

// ResumePartition requests that the consumer of a halted partition goes on. It reads the record or the batch before
// which it is halted again, or goes on after the gap. The consumer carries the request out within about a second, or
// the partition's next owner does (contract 7.10).
//
// ErrNotFound means that no living worker reports the partition, ErrStale that none reports it as halted at that
// offset. A later request for the partition replaces an earlier one.
func (o processes) ResumePartition(ctx context.Context, actor Actor, at PartitionRef) error {
	return o.request(ctx, actor, actionResumePartition, at)
}

// SkipRecord requests that the consumer of a halted partition stores the record at the offset as rejected, and goes on
// after it. If the halt is not about that record alone, it returns ErrNotSkippable. It returns the same other errors as
// ResumePartition.
func (o processes) SkipRecord(ctx context.Context, actor Actor, at PartitionRef) error {
	return o.request(ctx, actor, actionSkipRecord, at)
}

const (
	// awaitEvery is how often AwaitPartition and AwaitRequest poll.
	awaitEvery = 200 * time.Millisecond
	// reportDelay is how much older than its heartbeat a reported state may be: a worker collects it, then stores it.
	reportDelay = time.Second
)

// AwaitPartition waits until a request for a halt is carried out and the worker that has the partition, in a heartbeat
// since, no longer reports it halted there. It returns ErrStillHalted at once if the partition has halted there again,
// and when ctx ends, saying why the request is not carried out: it remains, and expires after an hour (contract 7.10).
func (o processes) AwaitPartition(ctx context.Context, at PartitionRef) error {
	at.AfterGap = false // requests and reports are compared without it
	doing := func(err error) error {
		return fmt.Errorf("await partition %s/%d of channel %s at offset %d: %w", at.Topic, at.Partition, at.Channel, at.Offset, err)
	}
	if err := at.check(); err != nil {
		return doing(err)
	}
	why, gone := error(ErrStillHalted), time.Time{}
	for {
		since := time.Since(gone) - reportDelay // before the read, which may take long
		var requests map[PartitionRef]models.PartitionRequest
		var consumers []Consumer
		err := untilDatabaseAnswers(ctx, func() (err error) {
			if requests, err = o.requests(ctx); err == nil {
				consumers, err = o.consumers(ctx)
			}
			return err
		})
		switch _, waits := requests[at]; {
		case ctx.Err() != nil:
			return doing(why)
		case err != nil:
			return doing(err)
		case waits:
			gone, why = time.Time{}, fmt.Errorf("%w: %s", ErrStillHalted, whyWaiting(consumers, at))
		case gone.IsZero():
			gone = time.Now()
			why = fmt.Errorf("%w: the request is carried out, and no heartbeat has reported its effect yet", ErrStillHalted)
		default:
			halted, reported := reportSince(consumers, at, since)
			if halted != nil {
				return doing(fmt.Errorf("%w: the request was carried out, and the partition has halted there again: %s",
					ErrStillHalted, halted.Problem))
			}
			if reported {
				return nil
			}
		}
		if !routine.Sleep(ctx, awaitEvery) {
			return doing(why)
		}
	}
}

// whyWaiting says why a request has not been carried out yet.
func whyWaiting(consumers []Consumer, at PartitionRef) string {
	for _, c := range consumers {
		for _, p := range c.Partitions {
			if c.Channel == at.Channel && p.Topic == at.Topic && p.Partition == at.Partition {
				return fmt.Sprintf("process %d on %s has the partition and has not carried out the request yet; its last heartbeat was %s ago",
					c.PID, c.Host, c.SilentFor.Round(time.Second))
			}
		}
	}
	return "no living worker reports the partition; its next owner carries out the request"
}

// reportSince returns the partition if a heartbeat within so long reports it halted there, and whether there are living
// workers of the channel and each has sent such a heartbeat: one stores only the most important partitions.
func reportSince(consumers []Consumer, at PartitionRef, since time.Duration) (
	halted *ConsumedPartition, reported bool,
) {
	workers, silent := 0, 0
	for _, c := range consumers {
		if c.Channel != at.Channel {
			continue
		}
		if workers++; c.SilentFor >= since {
			silent++
			continue
		}
		for _, p := range c.Partitions {
			if p.Topic == at.Topic && p.Partition == at.Partition && p.Halted && p.Position == at.Offset {
				return &p, true
			}
		}
	}
	return nil, workers > 0 && silent == 0
}

func (o processes) request(ctx context.Context, actor Actor, action Action, at PartitionRef) error {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	target := fmt.Sprintf("partition %s/%d of channel %s", at.Topic, at.Partition, at.Channel)
	err := actor.check()
	if err == nil {
		err = at.check()
	}
	var halted ConsumedPartition
	if err == nil {
		halted, err = o.halted(ctx, at)
	}
	decision := columns.DecisionResume
	switch {
	case err != nil:
	case action == actionSkipRecord && !halted.Skippable:
		err = fmt.Errorf("%w: resume the partition once the cause is fixed: %s", ErrNotSkippable, halted.Problem)
	case action == actionSkipRecord:
		decision = columns.DecisionSkip
	case halted.AfterGap != at.AfterGap:
		err = fmt.Errorf("%w: it is halted for another reason: %s", ErrStale, halted.Problem)
	case halted.AfterGap:
		decision = columns.DecisionContinue
	}
	var now time.Time
	if err == nil {
		now, err = o.Now(ctx) // another machine judges whether the request has expired
	}
	if err != nil {
		return fmt.Errorf("%s %s at offset %d: %w", action, target, at.Offset, err)
	}
	return o.audited(ctx, actor, action, target, func(ctx context.Context, tx *gorm.DB) (any, error) {
		id, err := uuid.NewV7()
		if err == nil {
			err = o.store.RequestPartition(ctx, tx.Statement.ConnPool, models.PartitionRequest{Channel: at.Channel,
				Topic: at.Topic, Partition: at.Partition, ID: id.String(), Offset: at.Offset, Decision: decision,
				Actor: string(actor), RequestedAt: now}, now.Add(-requestsLast))
		}
		return map[string]any{"offset": at.Offset, "halted": halted.Problem}, err
	})
}

// halted returns the partition as a living worker reports it halted at the offset.
func (o processes) halted(ctx context.Context, at PartitionRef) (ConsumedPartition, error) {
	consumers, err := o.consumers(ctx)
	if err != nil {
		return ConsumedPartition{}, err
	}
	err = fmt.Errorf("%w: no living worker reports it", ErrNotFound)
	for _, c := range consumers {
		for _, p := range c.Partitions {
			switch {
			case c.Channel != at.Channel || p.Topic != at.Topic || p.Partition != at.Partition:
			case p.Halted && p.Position == at.Offset:
				return p, nil
			case p.Halted:
				err = fmt.Errorf("%w: it is halted at offset %d", ErrStale, p.Position)
			default:
				err = fmt.Errorf("%w: it is not halted, but %s at offset %d", ErrStale, p.State, p.Position)
			}
		}
	}
	return ConsumedPartition{}, err
}
