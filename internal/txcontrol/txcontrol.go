// Package txcontrol finds the statements of an SQL text that control the transaction they run in:
// those that begin or end one, savepoints, and those that set something for the rest of it.
package txcontrol

import (
	"slices"
	"strings"
)

// Kind is what a statement does to the transaction it runs in.
type Kind int

// The kinds of transaction control.
const (
	// Boundary begins, ends or prepares a transaction: COMMIT, END, ROLLBACK, ABORT, BEGIN, START
	// TRANSACTION, PREPARE TRANSACTION.
	Boundary Kind = iota
	// Savepoint sets a savepoint.
	Savepoint
	// Release releases a savepoint and those set after it.
	Release
	// RollbackTo undoes what was done since a savepoint was set.
	RollbackTo
)

// Control is one control statement.
type Control struct {
	Kind Kind
	// Words are the statement's first two words, joined by a space. They are in upper case unless
	// quoted.
	Words string
	// Name is that of the savepoint, without quotes; "" for a Boundary.
	Name string
}

// Dialect decides by which rules a text is read.
type Dialect int

// The dialects, which differ in comments, quotes and strings.
const (
	PostgreSQL Dialect = iota
	SQLite
)

// maxWords is how many words of a statement are kept: its kind and the savepoint's name are among
// the first five.
const maxWords = 6

// keywords begin the control statements.
var keywords = []string{"COMMIT", "END", "ABORT", "BEGIN", "START", "PREPARE", "SAVEPOINT", "RELEASE", "ROLLBACK"}

// Find returns the text's control statements in their order. Most texts have none, and it returns
// quickly: their first word is not a keyword, and they contain no semicolon.
func Find(text string, dialect Dialect) []Control {
	s := scanner{text: text, dialect: dialect}
	s.skipSpace()
	if rest := text[s.at:]; !beginsWith(keywords, rest) && strings.IndexByte(rest, ';') < 0 {
		return nil
	}
	var found []Control
	for s.at < len(s.text) {
		if c, ok := classify(s.statement()); ok {
			found = append(found, c)
		}
	}
	return found
}

// beginsWith reports whether a statement's first word is one of some keywords.
func beginsWith(keywords []string, statement string) bool {
	end := 0
	for end < len(statement) && isPart(statement[end]) {
		end++
	}
	return slices.ContainsFunc(keywords, func(keyword string) bool {
		return len(keyword) == end && strings.EqualFold(statement[:end], keyword)
	})
}

func classify(words []word) (Control, bool) {
	c := Control{Words: joined(words)}
	switch first(words, 0) {
	case "COMMIT", "END", "ABORT", "BEGIN", "START":
		c.Kind = Boundary
		return c, true
	case "PREPARE":
		c.Kind = Boundary
		return c, first(words, 1) == "TRANSACTION"
	case "SAVEPOINT":
		c.Kind, c.Name = Savepoint, name(words, 1)
		return c, true
	case "RELEASE":
		at := 1
		if first(words, at) == "SAVEPOINT" {
			at++
		}
		c.Kind, c.Name = Release, name(words, at)
		return c, true
	case "ROLLBACK":
		at := 1
		if w := first(words, at); w == "WORK" || w == "TRANSACTION" {
			at++
		}
		if first(words, at) != "TO" {
			c.Kind = Boundary
			return c, true
		}
		if at++; first(words, at) == "SAVEPOINT" && len(words) > at+1 {
			at++
		}
		c.Kind, c.Name = RollbackTo, name(words, at)
		return c, true
	}
	return c, false
}

// first returns the word at i if it is a keyword, else "".
func first(words []word, i int) string {
	if i >= len(words) || words[i].quoted {
		return ""
	}
	return words[i].text
}

func name(words []word, i int) string {
	if i >= len(words) {
		return ""
	}
	return words[i].text
}

func joined(words []word) string {
	var b strings.Builder
	for i, w := range words {
		if i == 2 {
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(w.text)
	}
	return b.String()
}

// setters begin the PostgreSQL statements that set something for the transaction, or that run code which may.
var setters = []string{"SET", "RESET", "DO", "CALL"}

// Sets reports whether a text may change PostgreSQL's settings for the rest of the transaction. It
// does not see what functions of the database do.
func Sets(text string) bool {
	if callsSetConfig(text) {
		return true
	}
	s := scanner{text: text, dialect: PostgreSQL}
	s.skipSpace()
	if rest := text[s.at:]; !beginsWith(setters, rest) && strings.IndexByte(rest, ';') < 0 {
		return false
	}
	for s.at < len(s.text) {
		if slices.Contains(setters, first(s.statement(), 0)) {
			return true
		}
	}
	return false
}

// callsSetConfig reports whether text names PostgreSQL's function set_config.
func callsSetConfig(text string) bool {
	const name, underscore = "set_config", 3
	for at := underscore; at < len(text); at++ {
		n := strings.IndexByte(text[at:], '_')
		if n < 0 {
			return false
		}
		at += n
		if began := at - underscore; began+len(name) <= len(text) && strings.EqualFold(text[began:began+len(name)], name) {
			return true
		}
	}
	return false
}
