package inbox

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/attempt"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// longRunning describes the calls of one handler that have not returned for LongRunning.
type longRunning struct {
	handlerKey string
	messageIDs []string // of the calls, longest first, at most maxMessageIDs
	detail     string   // for an operator
}

// maxMessageIDs bounds the message IDs in a health reason.
const maxMessageIDs = 10

// longRunning returns the calls that do not return, for Health and the log, with the handler of the longest call first.
// workerID is this process's; it may be empty.
func (ib *Inbox) longRunning(workerID string) []longRunning {
	limit := ib.cfg.options.LongRunning
	if limit == 0 {
		return nil
	}
	now := ib.cfg.clock.Now()
	late := map[*handler.Handler][]attempt.RunningCall{}
	var order []*handler.Handler
	for _, c := range ib.running.Calls() {
		if now.Sub(c.Since) < max(limit, ib.timeoutOf(c.Handler)) {
			continue
		}
		if late[c.Handler] == nil {
			order = append(order, c.Handler)
		}
		late[c.Handler] = append(late[c.Handler], c)
	}
	var all []longRunning
	for _, h := range order {
		o := longRunning{handlerKey: h.Key(), detail: ib.describeCalls(late[h], workerID, now)}
		for _, c := range late[h] {
			o.messageIDs = append(o.messageIDs, c.MessageIDs()...)
		}
		o.messageIDs = o.messageIDs[:min(len(o.messageIDs), maxMessageIDs)]
		all = append(all, o)
	}
	return all
}

// describeCalls describes the longest of a handler's calls, and what to do about it.
func (ib *Inbox) describeCalls(calls []attempt.RunningCall, workerID string, now time.Time) string {
	longest := calls[0]
	ids := longest.MessageIDs()
	text := fmt.Sprintf("a call with message %q", ids[0])
	if more := len(ids) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	text += fmt.Sprintf(" has not returned for %s, since %s", now.Sub(longest.Since).Round(time.Second),
		longest.Since.Format(time.RFC3339))
	if workerID != "" {
		text += ", in worker " + workerID
	}
	if more := len(calls) - 1; more > 0 {
		text += fmt.Sprintf(", nor have %d other calls", more)
	}
	if timeout := ib.timeoutOf(longest.Handler); timeout > 0 {
		return text + fmt.Sprintf("; its timeout of %s is over: find where its goroutine waits, and have it obey its context",
			timeout)
	}
	return text + "; it has no timeout: find where its goroutine waits, and set HandlerTimeout or its own Timeout"
}

// timeoutOf returns how long a call of the handler may take, 0 for no limit.
func (ib *Inbox) timeoutOf(h *handler.Handler) time.Duration {
	if own := h.Timeout(); own > 0 {
		return own
	}
	return ib.cfg.options.Processor.HandlerTimeout
}

// oldestRunning returns the start of each handler's oldest running call, zero if none runs.
func (ib *Inbox) oldestRunning() map[string]time.Time {
	oldest := map[string]time.Time{}
	for h := range ib.registry.Handlers() {
		oldest[h.Key()] = time.Time{}
	}
	for _, c := range slices.Backward(ib.running.Calls()) {
		oldest[c.Handler.Key()] = c.Since
	}
	return oldest
}

// logLongRunning logs when calls of a handler do not return, every five minutes, and when all have returned. Each
// handler key has a condition of its own.
func (s *sampler) logLongRunning(conditions map[string]*condition.Condition) {
	workerID := s.ib.processor.Health().WorkerID
	late := map[string]bool{}
	for _, o := range s.ib.longRunning(workerID) {
		late[o.handlerKey] = true
		if conditions[o.handlerKey] == nil {
			log := s.ib.log.With(zap.String(telemetry.FieldHandlerKey, o.handlerKey))
			conditions[o.handlerKey] = condition.New(log, s.ib.cfg.clock, zap.WarnLevel, "handler progress",
				"a call does not return")
		}
		conditions[o.handlerKey].Begin(o.handlerKey, errors.New(o.detail),
			zap.String(telemetry.FieldMessageID, o.messageIDs[0]),
			zap.String(telemetry.FieldWorker, workerID))
	}
	for key, c := range conditions {
		if !late[key] {
			c.End(key)
		}
	}
}
