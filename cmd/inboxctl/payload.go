package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/redact"
)

// payloads hides payloads unless the user asks for them.
type payloads struct {
	show bool
	size int // of the last payload that was hidden
}

func (p *payloads) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&p.show, "show-payload", false, "also show the payload")
}

// redact is a redaction hook for ops. It removes payloads before they reach the rest of the
// program.
func (p *payloads) redact(v redact.Value) []byte {
	if p.show || v.Part != redact.PartPayload || v.Bytes == nil {
		return v.Bytes
	}
	p.size = len(v.Bytes)
	return []byte{}
}

// value is the payload as JSON shows it.
func (p *payloads) value(shown []byte) any {
	if p.show || shown == nil {
		return shown
	}
	return hidden{Hidden: true, Size: p.size}
}

// write shows a payload to people: text line by line, anything else as a hex dump.
func (p *payloads) write(w io.Writer, shown []byte) {
	switch {
	case shown == nil:
		fmt.Fprintln(w, "No payload.")
	case !p.show:
		fmt.Fprintf(w, "Payload of %d bytes, hidden: add --show-payload.\n", p.size)
	case len(shown) == 0:
		fmt.Fprintln(w, "Payload of 0 bytes.")
	case utf8.Valid(shown):
		fmt.Fprintf(w, "Payload of %d bytes:\n", len(shown))
		for _, line := range strings.Split(strings.TrimSuffix(string(shown), "\n"), "\n") {
			fmt.Fprintln(w, "  "+oneLine(line))
		}
	default:
		fmt.Fprintf(w, "Payload of %d bytes, not text:\n%s", len(shown), hex.Dump(shown))
	}
}

// bytesText formats a key or a header's value as one line.
func bytesText(b []byte) string {
	switch {
	case b == nil:
		return "(none)"
	case utf8.Valid(b):
		return string(b)
	}
	return "hex " + hex.EncodeToString(b)
}
