package ops

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Summary returns the Detail in words, for lists: what was counted, changed or requested, or why a handler runs again,
// then everything else that it says. Lists of more than three values are replaced by their number. It is the Detail
// itself if that is no JSON object.
func (e AuditEntry) Summary() string {
	var detail map[string]any
	decoder := json.NewDecoder(strings.NewReader(e.Detail))
	decoder.UseNumber()
	if err := decoder.Decode(&detail); err != nil {
		return e.Detail
	}
	var parts []string
	switch statuses, chunk := detail["status_ids"].([]any); {
	case chunk:
		parts = append(parts, fmt.Sprintf("changed %d", len(statuses)))
		delete(detail, "status_ids")
	case detail["event"] == "counted":
		atLeast := map[any]string{true: "+"}[detail["capped"]]
		parts = append(parts, fmt.Sprintf("counted %v%s", detail["matched"], atLeast))
		delete(detail, "matched")
		delete(detail, "capped")
	case e.Action == actionRerun:
		parts = append(parts, fmt.Sprintf("was %v, reason: %v", detail["state"], detail["reason"]))
		delete(detail, "state")
		delete(detail, "reason")
	case detail["event"] != nil:
		parts = append(parts, fmt.Sprint(detail["event"]))
	}
	delete(detail, "event")
	parts = append(parts, inWords("", detail["detail"])...) // what a request asks for
	delete(detail, "detail")
	filter := detail["filter"]
	delete(detail, "filter")
	parts = append(parts, inWords("", detail)...)
	return strings.Join(append(parts, inWords("", filter)...), ", ")
}

// inWords returns the values that are not empty, each after its name.
func inWords(name string, value any) (words []string) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			words = append(words, inWords(strings.TrimSpace(name+" "+wordsOf(key)), v[key])...)
		}
		return words
	case []any:
		if len(v) > 3 {
			return []string{fmt.Sprintf("%d %s", len(v), name)}
		}
		for _, each := range v {
			words = append(words, strings.Join(inWords("", each), " "))
		}
		if len(words) == 0 {
			return nil
		}
		return []string{name + " " + strings.Join(words, " and ")}
	case bool:
		if !v {
			return nil
		}
		return []string{name}
	}
	text := fmt.Sprint(value)
	if value == nil || text == "" || text == "0" {
		return nil
	}
	return []string{strings.TrimSpace(name + " " + text)}
}

// wordsOf returns the name of a JSON member in words.
func wordsOf(member string) string {
	words := strings.Fields(strings.ReplaceAll(member, "_", " "))
	for i, word := range words {
		if word == "id" {
			words[i] = "ID"
		}
	}
	return strings.Join(words, " ")
}
