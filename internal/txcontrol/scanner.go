package txcontrol

import (
	"regexp"
	"slices"
	"strings"
)

// Syntax is how a dialect's texts are read.
type Syntax struct {
	// Boundaries are the words, one or two, that begin a Boundary, besides ROLLBACK.
	Boundaries []string
	// Exceptions are two words each that begin no Boundary, although the first one does.
	Exceptions []string
	// Ending is a setting that ends the transaction, in upper case; "" if there is none.
	Ending string
	// Settings are the words that begin a Setting, or a statement that runs code which may be one.
	Settings []string
	// Setter is the function that sets something for the rest of the transaction; "" if there is none.
	Setter string
	// Quotes begin strings and quoted names. Each ends with the same character, but [ with ].
	Quotes string
	// Escape is the letter before a string in which a backslash escapes; "" if there is none.
	Escape string
	// Backslash says that a backslash escapes in each string.
	Backslash bool
	// Hash says that # begins a comment up to the end of the line.
	Hash bool
	// Executable says that comments which begin with an exclamation mark are executed, at least by some servers.
	Executable bool
	// Dollars says that strings may be quoted by two equal tags, $$ or $tag$.
	Dollars bool
	// LineEnds are the characters that end a comment after two dashes.
	LineEnds string
	// Nested says that comments may contain comments.
	Nested bool
	// Body is what begins the body of a trigger or a function: statements up to its END.
	Body string
}

// scanner reads a text statement by statement.
type scanner struct {
	*Syntax
	text string
	at   int
	// executes reports that at is in a comment that is executed.
	executes bool
}

// statement reads up to the semicolon that ends a statement and returns its first words, in upper case unless they are
// quoted. Semicolons inside the body of a trigger, or of a function written in SQL, do not end a statement.
func (s *scanner) statement() []string {
	words := make([]string, 0, maxWords)
	var last string
	depth := 0 // of BEGIN and CASE in such a body
	for s.at < len(s.text) {
		var w string
		switch c := s.text[s.at]; {
		case s.skipSpace():
			continue
		case c == ';':
			s.at++
			if depth == 0 {
				return words
			}
		case strings.IndexByte(s.Quotes, c) >= 0:
			w = s.quoted(c, s.Backslash && c != '`')
		case c == '$' && s.Dollars && s.dollarQuoted():
		case isStart(c):
			w = s.word()
		default:
			s.at++
		}
		if w != "" && len(words) < maxWords {
			words = append(words, w)
		}
		switch {
		case !createsBody(words):
		case depth == 0 && (w == s.Body || last+" "+w == s.Body):
			depth = 1
		case depth > 0 && w == "CASE":
			depth++
		case depth > 0 && w == "END":
			depth--
		}
		last = w
	}
	return words
}

// createsBody reports whether a statement with these first words may have a body of statements.
func createsBody(words []string) bool {
	return len(words) > 0 && words[0] == "CREATE" && slices.ContainsFunc(words[1:min(len(words), 4)], func(w string) bool {
		return w == "TRIGGER" || w == "FUNCTION" || w == "PROCEDURE"
	})
}

// word reads a keyword or a name, or a string in which a backslash escapes.
func (s *scanner) word() string {
	began := s.at
	s.at += partsOf(s.text[s.at:])
	w := s.text[began:s.at]
	if strings.EqualFold(w, s.Escape) && strings.HasPrefix(s.text[s.at:], "'") {
		return s.quoted('\'', true)
	}
	return strings.ToUpper(w)
}

// skipSpace skips space and comments and reports whether there were any. A byte order mark is space on SQLite;
// elsewhere no valid statement begins with one.
func (s *scanner) skipSpace() bool {
	began := s.at
	for s.at < len(s.text) {
		switch rest := s.text[s.at:]; {
		case strings.IndexByte(" \t\n\r\f\v", rest[0]) >= 0:
			s.at++
		case strings.HasPrefix(rest, "\uFEFF"):
			s.at += len("\uFEFF")
		case strings.HasPrefix(rest, "--") && (!s.Hash || len(rest) == 2 || rest[2] <= ' '),
			s.Hash && rest[0] == '#':
			s.skipTo(strings.IndexAny(rest, s.LineEnds))
		case s.Executable && rest[0] == '/' && s.skipExecutable():
		case s.executes && strings.HasPrefix(rest, "*/"):
			s.at += len("*/")
			s.executes = false
		case strings.HasPrefix(rest, "/*"):
			s.skipComment()
		default:
			return s.at > began
		}
	}
	return s.at > began
}

// executable is the beginning of a comment that is executed, as by servers of a version.
var executable = regexp.MustCompile(`/\*M?!\d*`)

// skipExecutable skips the beginning of a comment that is executed, and reports whether there was one.
func (s *scanner) skipExecutable() bool {
	at := executable.FindStringIndex(s.text[s.at:])
	if at == nil || at[0] > 0 {
		return false
	}
	s.at += at[1]
	s.executes = true
	return true
}

// skipTo skips n bytes, or everything if n is negative.
func (s *scanner) skipTo(n int) {
	if n < 0 {
		n = len(s.text) - s.at
	}
	s.at += n
}

func (s *scanner) skipComment() {
	depth := 0
	for s.at < len(s.text) {
		rest := s.text[s.at:]
		switch {
		case strings.HasPrefix(rest, "/*") && (depth == 0 || s.Nested):
			s.at += 2
			depth++
		case strings.HasPrefix(rest, "*/"):
			s.at += 2
			if depth--; depth == 0 {
				return
			}
		default:
			s.at++
		}
	}
}

// quoted reads a string or a quoted name with its quotes. A quote in it is doubled.
func (s *scanner) quoted(quote byte, escapes bool) string {
	if quote == '[' {
		quote = ']'
	}
	began := s.at
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case escapes && c == '\\':
			s.at++
		case c != quote:
		case quote != ']' && strings.HasPrefix(s.text[s.at+1:], string(quote)):
			s.at++
		default:
			s.at++
			return s.text[began:s.at]
		}
	}
	s.at = len(s.text)
	return s.text[began:]
}

// unquoted returns a name without its quotes.
func (x *Syntax) unquoted(name string) string {
	if strings.IndexByte(x.Quotes, name[0]) < 0 {
		return name
	}
	return name[1:max(1, len(name)-1)]
}

var dollarTag = regexp.MustCompile(`^\$(?:[A-Za-z_[:^ascii:]][0-9A-Za-z_[:^ascii:]]*)?\$`)

// dollarQuoted skips a string between two equal tags and reports whether there is one.
func (s *scanner) dollarQuoted() bool {
	tag := dollarTag.FindString(s.text[s.at:])
	if tag == "" {
		return false
	}
	s.at += len(tag)
	end := strings.Index(s.text[s.at:], tag)
	s.skipTo(end)
	if end >= 0 {
		s.at += len(tag)
	}
	return true
}

func isStart(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// partsOf returns the length of the word that text begins with.
func partsOf(text string) int {
	n := 0
	for n < len(text) && (isStart(text[n]) || n > 0 && (text[n] >= '0' && text[n] <= '9' || text[n] == '$')) {
		n++
	}
	return n
}
