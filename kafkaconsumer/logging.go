package kafkaconsumer

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// kafkaLog hands kafka-go's lines to zap as debug output: what matters of them
// comes back as errors, and is logged once per change (contract 7.8).
type kafkaLog struct{ log *zap.Logger }

// Printf implements kafka.Logger.
func (l kafkaLog) Printf(format string, args ...any) {
	if entry := l.log.Check(zap.DebugLevel, "inbox: kafka client"); entry != nil {
		entry.Write(zap.String(telemetry.FieldText, fmt.Sprintf(format, args...)))
	}
}
