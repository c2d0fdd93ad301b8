package telemetry

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/gorm-inbox/inbox/redact"
)

// maxText bounds, in characters, what of a text that came from outside is part of
// a span.
const maxText = 2000

// text makes what came with a message, or from a handler, fit a span: exporters
// refuse a whole batch of spans for one string that is no UTF-8.
func text(s string) string {
	if len(s) <= maxText && utf8.ValidString(s) {
		return s
	}
	// Nothing behind this can survive the cut, however large the text.
	if most := maxText * utf8.UTFMax; len(s) > most {
		s = s[:most]
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	count := 0
	for i := range s {
		if count == maxText {
			return s[:i]
		}
		count++
	}
	return s
}

// stacked is an error whose text ends with a stack, after an empty line: that of a
// handler's panic.
type stacked interface{ Trace() []byte }

// explain is what an error says, and apart from it the stack it carries, redacted before
// they are cut. The error is the application's: its methods may panic, whatever they
// have done before.
func (i *Instruments) explain(of redact.Value, err error) (said, stack string) {
	defer func() {
		if v := recover(); v != nil {
			said, stack = text(fmt.Sprintf("%T, which panics when it is asked for its text", err)), ""
		}
	}()
	said = err.Error()
	var panicked stacked
	if errors.As(err, &panicked) && len(panicked.Trace()) > 0 {
		stack = string(panicked.Trace())
		said = strings.Replace(said, "\n\n"+stack, "", 1)
	}
	return text(i.cfg.Redactor.Error(of, said)), text(i.cfg.Redactor.Error(of, stack))
}

// fail gives a span error status, and the error as an event, as
// trace.Span.RecordError would.
func (i *Instruments) fail(span trace.Span, of redact.Value, err error, errorType string) {
	if err == nil || !span.IsRecording() {
		return
	}
	said, stack := i.explain(of, err)
	event := []attribute.KeyValue{attrExceptionType.String(fmt.Sprintf("%T", err)), attrExceptionMessage.String(said)}
	if stack != "" {
		event = append(event, attrExceptionStack.String(stack))
	}
	span.SetAttributes(attrErrorType.String(errorType))
	span.AddEvent(eventException, trace.WithAttributes(event...))
	span.SetStatus(codes.Error, said)
}
