package acceptor

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// mostlyRefused is how many refused records are needed to suspect the schema: a single bad record
// in a small batch is only a bad record.
const mostlyRefused = 3

// bisect halves the batch until everything that the database takes is stored and every record that
// it refuses stands alone.
func (in *intake) bisect(ctx context.Context, received []envelope.Received, cause error) ([]envelope.Result, error) {
	b := &bisection{intake: in, received: received, results: make([]envelope.Result, len(received)),
		stored: make([]bool, len(received)), refused: map[int]error{}, stopped: map[partition]bool{}}
	all := make([]int, len(received))
	for i := range all {
		all[i] = i
	}
	if err := b.narrow(ctx, all, cause); err != nil {
		return nil, err
	}
	if b.mostlyRefused() {
		in.cfg.Logger.Error("inbox: the database refuses most records of a batch, halting instead of rejecting them",
			zap.String(telemetry.FieldChannel, in.channel), zap.Int(telemetry.FieldRefused, len(b.refused)),
			zap.Int(telemetry.FieldRecords, len(received)), zap.Error(cause))
		for i := range received {
			if !b.stored[i] {
				b.results[i] = envelope.Result{Disposition: envelope.Halt, Err: &InvalidError{Reason: reasonRefused, Err: cause}}
			}
		}
	} else if err := b.reject(ctx); err != nil {
		return nil, err
	}
	haltedRecords(received, b.results)
	return b.results, nil
}

// bisection is one running bisect.
type bisection struct {
	*intake
	received []envelope.Received
	results  []envelope.Result
	stored   []bool
	refused  map[int]error
	stopped  map[partition]bool // records after one that halts are not stored
}

func (b *bisection) stop(r envelope.Record) { b.stopped[partitionOf(r)] = true }

// mostlyRefused reports whether most records are refused. It can become true before every record
// was tried. Otherwise a wrong schema would cost the time of hundreds of transactions.
func (b *bisection) mostlyRefused() bool {
	return len(b.refused) >= mostlyRefused && len(b.refused) > len(b.received)/2
}

// narrow stores a refused part of the batch as far as possible, in order, and notes the single records that are
// refused.
func (b *bisection) narrow(ctx context.Context, part []int, cause error) error {
	if len(part) == 1 {
		i := part[0]
		b.refused[i] = cause
		if b.policyOf(b.received[i].Record) == BadRecordHalt {
			b.stop(b.received[i].Record)
		}
		return nil
	}
	for _, half := range [][]int{part[:len(part)/2], part[len(part)/2:]} {
		half = slices.DeleteFunc(slices.Clone(half), func(i int) bool {
			return b.stopped[partitionOf(b.received[i].Record)]
		})
		if len(half) == 0 || b.mostlyRefused() {
			continue
		}
		records := make([]envelope.Received, len(half))
		for k, i := range half {
			records[k] = b.received[i]
		}
		results, err := b.accept(ctx, records)
		switch {
		case err == nil:
			for k, i := range half {
				b.results[i], b.stored[i] = results[k], true
				if results[k].Disposition == envelope.Halt {
					b.stop(b.received[i].Record)
				}
			}
		case !store.IsData(err):
			return err
		default:
			if err := b.narrow(ctx, half, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// reject treats the refused records as bad. If the database refuses the rejected row too, the record halts.
func (b *bisection) reject(ctx context.Context) error {
	for _, i := range slices.Sorted(maps.Keys(b.refused)) {
		problem := &InvalidError{Reason: reasonRefused, Err: b.refused[i]}
		bad, err := b.accept(ctx, []envelope.Received{{Record: b.received[i].Record, Err: problem}})
		switch {
		case err == nil:
			b.results[i] = bad[0]
		case store.IsData(err):
			b.results[i] = envelope.Result{Disposition: envelope.Halt,
				Err: fmt.Errorf("it cannot be kept as rejected either: %w", err)}
		default:
			return err
		}
	}
	return nil
}
