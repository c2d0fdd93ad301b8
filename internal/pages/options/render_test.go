package options

import (
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

// section is a heading and the entries below it.
type section struct {
	title, intro string
	entries      []entry
	// before is put before a name in the heading, such as "inbox.".
	before func(name string) string
	// facts are a line below it; empty for none.
	facts func(name string) string
}

func (s section) write(b *strings.Builder, anchors map[string]string) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", s.title, s.intro)
	for _, e := range s.entries {
		fmt.Fprintf(b, "\n### %s%s\n\n", s.before(e.name), e.name)
		var first []string
		if e.signature != "" {
			first = append(first, "`"+e.name+e.signature+"`")
		}
		if facts := s.facts(e.name); facts != "" {
			first = append(first, facts)
		}
		if len(first) > 0 {
			b.WriteString(strings.Join(first, ": ") + "\n\n")
		}
		b.WriteString(linked(e.doc, anchors))
		b.WriteString("\n")
	}
}
