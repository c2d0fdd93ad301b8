package inbox

import (
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/condition"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

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
	h := s.ib.Health()
	late := map[string]bool{}
	for _, r := range h.Reasons {
		if r.Code != health.LongRunning {
			continue
		}
		late[r.HandlerKey] = true
		if conditions[r.HandlerKey] == nil {
			log := s.ib.log.With(zap.String(telemetry.FieldHandlerKey, r.HandlerKey))
			conditions[r.HandlerKey] = condition.New(log, s.ib.cfg.clock, zap.WarnLevel, "handler progress",
				"a call does not return")
		}
		conditions[r.HandlerKey].Begin(r.HandlerKey, errors.New(r.Detail),
			zap.String(telemetry.FieldMessageID, r.MessageIDs[0]), zap.String(telemetry.FieldWorker, h.Processor.WorkerID))
	}
	for key, c := range conditions {
		if !late[key] {
			c.End(key)
		}
	}
}
