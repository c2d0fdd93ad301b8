package txcontrol

import (
	"slices"
	"strings"
)

// scanner reads a text statement by statement.
type scanner struct {
	text    string
	dialect Dialect
	at      int
}

// word is a keyword or an identifier, in upper case unless it is quoted, or a string, which SQLite
// accepts as the name of a savepoint.
type word struct {
	text   string
	quoted bool
}

// statement reads up to the semicolon that ends a statement and returns its first words. Semicolons
// inside the body of a trigger, or of a function written in SQL (BEGIN ATOMIC), do not end a
// statement.
func (s *scanner) statement() []word {
	words := make([]word, 0, maxWords)
	var last string
	depth := 0 // of BEGIN and CASE in such a body
	body := false
	for s.at < len(s.text) {
		c := s.text[s.at]
		switch {
		case s.skipSpace():
		case c == ';':
			s.at++
			if depth == 0 {
				return words
			}
		case c == '\'' || c == '"' || s.dialect == SQLite && (c == '`' || c == '['):
			words = add(words, word{s.quoted(c), true})
			last = ""
		case c == '$' && s.dialect == PostgreSQL && s.dollarQuoted():
			last = ""
		case isStart(c):
			raw := s.identifier()
			w := strings.ToUpper(raw)
			if s.dialect == PostgreSQL && w == "E" && s.at < len(s.text) && s.text[s.at] == '\'' {
				s.escaped()
				continue
			}
			words = add(words, word{w, false})
			body = body || createsBody(words)
			switch {
			case !body:
			case depth == 0:
				if w == "BEGIN" && s.dialect == SQLite || w == "ATOMIC" && last == "BEGIN" {
					depth = 1
				}
			case w == "CASE":
				depth++
			case w == "END":
				depth--
			}
			last = w
		default:
			s.at++
			last = ""
		}
	}
	return words
}

func add(words []word, w word) []word {
	if len(words) < maxWords {
		words = append(words, w)
	}
	return words
}

// createsBody reports whether a statement with these first words may have a body with statements of
// its own.
func createsBody(words []word) bool {
	return first(words, 0) == "CREATE" && slices.ContainsFunc(words[1:min(len(words), 4)], func(w word) bool {
		return !w.quoted && (w.text == "TRIGGER" || w.text == "FUNCTION" || w.text == "PROCEDURE")
	})
}

// skipSpace skips space and comments and reports whether there were any.
func (s *scanner) skipSpace() bool {
	began := s.at
	for s.at < len(s.text) {
		rest := s.text[s.at:]
		switch {
		case strings.IndexByte(" \t\n\r\f\v", rest[0]) >= 0:
			s.at++
		case s.dialect == SQLite && strings.HasPrefix(rest, "\uFEFF"):
			s.at += len("\uFEFF")
		case strings.HasPrefix(rest, "--"):
			s.skipLine()
		case strings.HasPrefix(rest, "/*"):
			s.skipComment()
		default:
			return s.at > began
		}
	}
	return s.at > began
}

func (s *scanner) skipLine() {
	end := "\n"
	if s.dialect == PostgreSQL {
		end = "\n\r"
	}
	if n := strings.IndexAny(s.text[s.at:], end); n >= 0 {
		s.at += n
	} else {
		s.at = len(s.text)
	}
}

// skipComment skips a comment. Only in PostgreSQL can it contain other comments.
func (s *scanner) skipComment() {
	depth := 0
	for s.at < len(s.text) {
		rest := s.text[s.at:]
		switch {
		case strings.HasPrefix(rest, "/*") && (depth == 0 || s.dialect == PostgreSQL):
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

// quoted reads a string or a quoted identifier, in which a quote is doubled.
func (s *scanner) quoted(quote byte) string {
	if quote == '[' {
		quote = ']'
	}
	s.at++
	began := s.at
	for s.at < len(s.text) {
		if s.text[s.at] != quote {
			s.at++
			continue
		}
		if quote != ']' && s.at+1 < len(s.text) && s.text[s.at+1] == quote {
			s.at += 2
			continue
		}
		text := s.text[began:s.at]
		s.at++
		return text
	}
	return s.text[began:]
}

// escaped reads a PostgreSQL string in which a backslash escapes.
func (s *scanner) escaped() {
	s.at++
	for s.at < len(s.text) {
		switch c := s.text[s.at]; {
		case c == '\\':
			s.at = min(s.at+2, len(s.text))
		case c != '\'':
			s.at++
		case s.at+1 < len(s.text) && s.text[s.at+1] == '\'':
			s.at += 2
		default:
			s.at++
			return
		}
	}
}

// dollarQuoted skips a string between two equal tags, $$ or $tag$, and reports whether there is
// one.
func (s *scanner) dollarQuoted() bool {
	end := s.at + 1
	for end < len(s.text) && isPart(s.text[end]) && s.text[end] != '$' && (end > s.at+1 || isStart(s.text[end])) {
		end++
	}
	if end >= len(s.text) || s.text[end] != '$' {
		return false
	}
	tag := s.text[s.at : end+1]
	if n := strings.Index(s.text[end+1:], tag); n >= 0 {
		s.at = end + 1 + n + len(tag)
	} else {
		s.at = len(s.text)
	}
	return true
}

func (s *scanner) identifier() string {
	began := s.at
	for s.at < len(s.text) && isPart(s.text[s.at]) {
		s.at++
	}
	return s.text[began:s.at]
}

func isStart(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isPart(c byte) bool { return isStart(c) || c >= '0' && c <= '9' || c == '$' }
