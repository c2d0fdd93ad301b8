package postgres

import "strings"

// escaped escapes what would end an element in quotes.
var escaped = strings.NewReplacer(`"`, `\"`, `\`, `\\`)

// listed encodes a list as an array literal of PostgreSQL, for a parameter of type text. For an
// array parameter the driver would encode each element by itself.
func listed(list []string) string {
	size := 2
	for _, element := range list {
		size += len(element) + 5
	}
	var text strings.Builder
	text.Grow(size)
	text.WriteByte('{')
	for i, element := range list {
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteByte('"')
		_, _ = escaped.WriteString(&text, element) // a Builder returns no errors
		text.WriteByte('"')
	}
	text.WriteByte('}')
	return text.String()
}
