package processor

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/telemetry"
)

// stateLog logs a trouble once when it begins and once when it ends, however
// often it is met in between (contract 5.15, 7.8).
type stateLog struct {
	log   *zap.Logger
	what  string
	mu    sync.Mutex
	err   error
	since time.Time
}

func newStateLog(log *zap.Logger, what string) *stateLog { return &stateLog{log: log, what: what} }

func (s *stateLog) failing(message string, err error, fields ...zap.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.err == nil
	s.err = err
	if first {
		s.since = time.Now()
		s.log.Error(message, append(fields, zap.Error(err))...)
	}
}

func (s *stateLog) healthy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return
	}
	s.log.Info("inbox: recovered", zap.String(telemetry.FieldWhat, s.what), zap.Duration(telemetry.FieldAfter, time.Since(s.since)))
	s.err = nil
}

// trouble returns the last error while the trouble lasts.
func (s *stateLog) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
