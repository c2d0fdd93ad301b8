package postgres

import (
	"strings"
)

// listed encodes a list as an array literal of PostgreSQL, for a parameter of type text. For an
// array parameter the driver would encode each element by itself.
func listed(list []string) string { return listedWith(list, `""`) }

// listedOrNull is listed with NULL for empty elements.
func listedOrNull(list []string) string { return listedWith(list, "NULL") }

func listedWith(list []string, empty string) string {
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
		if element == "" {
			text.WriteString(empty)
			continue
		}
		text.WriteByte('"')
		for {
			special := strings.IndexAny(element, `"\`)
			if special < 0 {
				break
			}
			text.WriteString(element[:special])
			text.WriteByte('\\')
			text.WriteByte(element[special])
			element = element[special+1:]
		}
		text.WriteString(element)
		text.WriteByte('"')
	}
	text.WriteByte('}')
	return text.String()
}
