package kafkaconsumer

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// kafkaLog writes kafka-go's lines to zap at debug level. What matters of them is also returned as
// errors, and logged once per change.
type kafkaLog struct{ log *zap.Logger }

// Printf implements kafka.Logger.
func (l kafkaLog) Printf(format string, args ...any) {
	if entry := l.log.Check(zap.DebugLevel, "inbox: kafka client"); entry != nil {
		entry.Write(zap.String(telemetry.FieldText, fmt.Sprintf(format, args...)))
	}
}
