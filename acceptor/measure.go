package acceptor

import (
	"context"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// traced begins the span of an accept of messages.
func (a *Acceptor) traced(ctx context.Context, messages []handler.RawMessage) (context.Context, *telemetry.Accepting) {
	if !a.cfg.Instruments.Traces() || len(messages) == 0 {
		return ctx, nil
	}
	channel := messages[0].Channel
	for _, m := range messages {
		if m.Channel != channel {
			channel = telemetry.Other
		}
	}
	return a.cfg.Instruments.StartAccept(ctx, channel, func(yield func(*handler.RawMessage) bool) {
		for i := range messages {
			if !yield(&messages[i]) {
				return
			}
		}
	})
}

// tracedRecords is traced for the messages of records.
func (a *Acceptor) tracedRecords(
	ctx context.Context, channel string, received []envelope.Received,
) (context.Context, *telemetry.Accepting) {
	if !a.cfg.Instruments.Traces() {
		return ctx, nil
	}
	return a.cfg.Instruments.StartAccept(ctx, channel, func(yield func(*handler.RawMessage) bool) {
		for _, r := range received {
			for i := range r.Messages {
				if !yield(&r.Messages[i]) {
					return
				}
			}
		}
	})
}

func notTimed(error) {}

// timed measures how long it takes to persist a plan. Call the returned function with the error of that.
func (a *Acceptor) timed(ctx context.Context, p *plan) func(error) {
	if !a.cfg.Instruments.TimesAccepts(ctx) {
		return notTimed
	}
	channel := ""
	for i, row := range p.rows {
		its := p.messages[row].Channel
		if i > 0 && its != channel {
			its = telemetry.Other
		}
		channel = its
	}
	if len(p.rows) == 0 && len(p.batch.Rejected) > 0 {
		channel = p.batch.Rejected[0].Channel
	}
	began := time.Now()
	return func(err error) { a.cfg.Instruments.Accepted(ctx, channel, time.Since(began), err != nil) }
}
