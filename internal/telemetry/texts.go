package telemetry

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/redact"
)

// maxText is how many characters of a text that came from outside a span gets.
const maxText = 2000

// text makes a text that came with a message, or from a handler, valid for a span. Exporters refuse a whole batch of
// spans because of one string that is not UTF-8.
func text(s string) string {
	if len(s) <= maxText && utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(brief.Characters(s, maxText), "\uFFFD")
	return brief.Characters(s, maxText)
}

// stacked is an error whose text ends with a stack after an empty line, such as the error of a handler's panic.
type stacked interface{ Trace() []byte }

// explain returns an error's text and, separately, the stack it carries. Both are redacted before they are cut. The
// error is application code, so its methods may panic.
func (i *Instruments) explain(of redact.Value, err error) (message, stack string) {
	defer func() {
		if v := recover(); v != nil {
			message, stack = text(fmt.Sprintf("%T, which panics when it is asked for its text", err)), ""
		}
	}()
	message = err.Error()
	var panicked stacked
	if errors.As(err, &panicked) && len(panicked.Trace()) > 0 {
		stack = string(panicked.Trace())
		message = strings.Replace(message, "\n\n"+stack, "", 1)
	}
	return text(i.cfg.Redactor.Error(of, message)), text(i.cfg.Redactor.Error(of, stack))
}

// fail sets a span's status to error and adds the error as an event, as trace.Span.RecordError would.
func (i *Instruments) fail(span trace.Span, of redact.Value, err error, errorType string) {
	if err == nil || !span.IsRecording() {
		return
	}
	message, stack := i.explain(of, err)
	event := []attribute.KeyValue{attrExceptionType.String(fmt.Sprintf("%T", err)), attrExceptionMessage.String(message)}
	if stack != "" {
		event = append(event, attrExceptionStack.String(stack))
	}
	span.SetAttributes(attrErrorType.String(errorType))
	span.AddEvent(eventException, trace.WithAttributes(event...))
	span.SetStatus(codes.Error, message)
}
