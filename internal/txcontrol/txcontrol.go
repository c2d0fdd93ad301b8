// Package txcontrol finds the statements of an SQL text that control the transaction they run in: those that begin or
// end one, savepoints, and those that set something for the rest of it.
package txcontrol

import (
	"slices"
	"strings"
)

// Kind is what a statement does to the transaction it runs in.
type Kind int

// The kinds of transaction control.
const (
	// Boundary begins, ends or prepares a transaction, see Syntax.Boundaries.
	Boundary Kind = iota
	// Savepoint sets a savepoint.
	Savepoint
	// Release releases a savepoint and those set after it.
	Release
	// RollbackTo undoes the statements since a savepoint was set.
	RollbackTo
	// Setting may set something for the rest of the transaction. Settings by functions of the database are not seen.
	Setting
)

// Control is one control statement.
type Control struct {
	Kind Kind
	// Words are the statement's first two words, joined by a space. They are in upper case unless quoted.
	Words string
	// Name is the savepoint's name, without quotes.
	Name string
}

// Boundaries are the words that begin a Boundary in any dialect, besides ROLLBACK, which may also be a RollbackTo.
var Boundaries = []string{"COMMIT", "END", "ABORT", "BEGIN", "START", "PREPARE TRANSACTION"}

var savepoints = []string{"SAVEPOINT", "RELEASE", "ROLLBACK"}

// maxWords is how many words of a statement are kept: the savepoint's name is among the first six.
const maxWords = 6

// Find returns the text's control statements in their order. Most texts have none, and it returns quickly: their first
// word is not a keyword, and they contain no semicolon.
func (x *Syntax) Find(text string) (found []Control) {
	if x.Setter != "" && containsFold(text, x.Setter) {
		found = append(found, Control{Kind: Setting, Words: x.Setter})
	}
	s := scanner{Syntax: x, text: text}
	s.skipSpace()
	if !x.begins(s.text[s.at:]) && strings.IndexByte(s.text[s.at:], ';') < 0 {
		return found
	}
	for s.at < len(s.text) {
		began := s.at
		c, ok := x.classify(s.statement())
		if ok && c.Kind == Setting && x.Ending != "" && strings.Contains(strings.ToUpper(text[began:s.at]), x.Ending) {
			c.Kind = Boundary
		}
		if ok {
			found = append(found, c)
		}
	}
	if x.Executable && executable.MatchString(text) {
		// Another server, for which the comments are comments, reads other statements.
		plain := *x
		plain.Executable = false
		for _, c := range plain.Find(text) {
			if c.Kind == Boundary {
				found = append(found, c)
			}
		}
	}
	return found
}

// begins reports whether a statement's first word may begin a control statement.
func (x *Syntax) begins(statement string) bool {
	first := statement[:partsOf(statement)]
	is := func(keyword string) bool {
		return len(keyword) >= len(first) && strings.EqualFold(keyword[:len(first)], first) &&
			(len(keyword) == len(first) || keyword[len(first)] == ' ')
	}
	return slices.ContainsFunc(savepoints, is) || slices.ContainsFunc(x.Boundaries, is) ||
		slices.ContainsFunc(x.Settings, is)
}

func (x *Syntax) classify(words []string) (Control, bool) {
	if len(words) == 0 {
		return Control{}, false
	}
	c := Control{Words: strings.Join(words[:min(len(words), 2)], " ")}
	switch first := words[0]; {
	case first == "SAVEPOINT":
		c.Kind = Savepoint
	case first == "RELEASE":
		c.Kind = Release
	case first == "ROLLBACK" && slices.Contains(words, "TO"):
		c.Kind = RollbackTo
	case slices.Contains(x.Exceptions, c.Words):
		return c, false
	case first == "ROLLBACK", slices.Contains(x.Boundaries, first), slices.Contains(x.Boundaries, c.Words):
		return c, true
	default:
		c.Kind = Setting
		return c, slices.Contains(x.Settings, first)
	}
	c.Name = x.unquoted(words[len(words)-1])
	return c, true
}

// containsFold reports whether text contains the name of a function, which has one underscore, in any case.
func containsFold(text, name string) bool {
	before := strings.IndexByte(name, '_')
	for {
		at := strings.IndexByte(text, '_')
		if at < 0 {
			return false
		}
		from, to := at-before, at-before+len(name)
		if from >= 0 && to <= len(text) && strings.EqualFold(text[from:to], name) {
			return true
		}
		text = text[at+1:]
	}
}
