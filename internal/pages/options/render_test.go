package options

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

var (
	clauses = regexp.MustCompile(`(?i)\bcontract (\d+(?:\.\d+)?(?:, \d+(?:\.\d+)?)*)`)
	clause  = regexp.MustCompile(`\d+(?:\.\d+)?`)
	headed  = regexp.MustCompile(`(?m)^#{2,3} (\d+(?:\.\d+)?)\.? (.*)$`)
	other   = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors of the contract's clauses, by their numbers.
func anchors(contract string) map[string]string {
	found := map[string]string{}
	for _, h := range headed.FindAllStringSubmatch(contract, -1) {
		_, title, _ := strings.Cut(h[0], " ")
		found[h[1]] = strings.ReplaceAll(other.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
	}
	return found
}

// linked makes links of the clauses that a text cites.
func linked(text string, anchors map[string]string) string {
	return clauses.ReplaceAllStringFunc(text, func(cited string) string {
		return cited[:len("contract ")] + clause.ReplaceAllStringFunc(cited[len("contract "):], func(number string) string {
			if anchor, ok := anchors[number]; ok {
				return "[" + number + "](contract.md#" + anchor + ")"
			}
			return number
		})
	})
}

// section is a heading with a table of the entries.
type section struct {
	title, intro string
	entries      []entry
	before       func(name string) string    // put before a name, such as "inbox."
	facts        func(name string) [2]string // the default and what is allowed; nil for no such columns
}

func (s section) write(b *strings.Builder, anchors map[string]string) {
	fmt.Fprintf(b, "\n%s\n\n", s.title)
	if s.intro != "" {
		b.WriteString(s.intro + "\n\n")
	}
	facts := make([][2]string, len(s.entries))
	columns := 0
	for i, e := range s.entries {
		if s.facts != nil {
			facts[i] = s.facts(e.name)
		}
		for column, fact := range facts[i] {
			if fact != "" {
				columns = max(columns, column+1)
			}
		}
	}
	b.WriteString("| option |" + []string{"", " default |", " default | allowed |"}[columns] + " |\n|" +
		strings.Repeat("---|", 2+columns) + "\n")
	for i, e := range s.entries {
		fmt.Fprintf(b, "| `%s%s%s` |", s.before(e.name), e.name, e.signature)
		for _, fact := range facts[i][:columns] {
			fmt.Fprintf(b, " %s |", cmp.Or(fact, "–"))
		}
		fmt.Fprintf(b, " %s |\n", linked(strings.ReplaceAll(brief(e.doc), "|", `\|`), anchors))
	}
}

var (
	cited       = regexp.MustCompile(`\s*\(?[Cc]ontract (\d[\d., ]*\d|\d)\.?\)`)
	warning     = regexp.MustCompile(`(?i)\bdo not\b|^Nor\b|\bmust\b`)
	sentenceEnd = regexp.MustCompile(`\.\)?\s+[A-Z]`)
)

// brief returns the first sentence of an option's documentation, those that warn (do not, must),
// and the clauses of the contract that it cites.
func brief(text string) string {
	var kept, clauses []string
	for _, m := range cited.FindAllStringSubmatch(text, -1) {
		clauses = append(clauses, m[1])
	}
	text = cited.ReplaceAllString(text, "")
	for _, paragraph := range strings.Split(text, "\n\n") {
		for _, sentence := range sentences(strings.Join(strings.Fields(paragraph), " ")) {
			if len(kept) == 0 || warning.MatchString(sentence) {
				kept = append(kept, sentence)
			}
		}
	}
	if len(clauses) > 0 {
		kept = append(kept, "Contract "+strings.Join(clauses, ", ")+".")
	}
	return strings.Join(kept, " ")
}

// sentences splits a paragraph where a full stop is followed by a capital letter.
func sentences(paragraph string) []string {
	var all []string
	for {
		end := sentenceEnd.FindStringIndex(paragraph)
		if end == nil {
			return append(all, paragraph)
		}
		all = append(all, strings.TrimSpace(paragraph[:end[1]-1]))
		paragraph = paragraph[end[1]-1:]
	}
}
