package redact

import (
	"bytes"

	"github.com/gorm-inbox/inbox/internal/secrets"
)

// Mask replaces a secret in the result of Common.
const Mask = "[redacted]"

// Common is a Hook that replaces with Mask what is secret in most applications:
//
//   - card numbers of the usual networks that pass the Luhn check: unspaced, in groups with spaces or
//     dashes, or as fmt prints a float64 (4.111111111111111e+15);
//   - the value of each header, attribute, JSON or XML member, form field and "name=value" or
//     "name: value" whose name, in upper or lower case, ends in password, secret, token, apikey,
//     authorization, cookie and the like, with or without dashes and underscores;
//   - tokens after Bearer and Basic, and JSON Web Tokens;
//   - passwords in URLs, by xxxxx.
//
// UUIDs, times, offsets and most other numbers stay, but one number in ten that begins like a
// card's passes the Luhn check. It returns v.Bytes itself if it finds nothing. Do not rely on it
// for what only the application knows to be secret, such as names and addresses, nor for payloads
// that are compressed or encoded.
func Common(v Value) []byte {
	if len(v.Bytes) > 0 && isSecret([]byte(v.Name)) {
		return []byte(Mask)
	}
	text := v.Bytes
	if bytes.Contains(text, []byte("://")) {
		if masked := secrets.Mask(string(text)); masked != string(text) {
			text = []byte(masked)
		}
	}
	s := scanner{text: text}
	return s.scan()
}

// scanner finds secrets in one pass.
type scanner struct {
	text   []byte
	out    []byte // nil until the first secret
	copied int    // how much of text has been copied to out or replaced
}

func (s *scanner) scan() []byte {
	for i := 0; i < len(s.text); {
		c := s.text[i]
		switch {
		case c == '\\' && i+1 < len(s.text): // the letter of \n is not part of a word
			i += 2
		case escaped(s.text[i:]):
			i += 3
		case isWord(c):
			end := i + 1
			for end < len(s.text) && isWord(s.text[end]) {
				end++
			}
			i = s.word(i, end)
		default:
			i++
		}
	}
	if s.out == nil {
		return s.text
	}
	return append(s.out, s.text[s.copied:]...)
}

// replace replaces text[from:to] with Mask and returns to.
func (s *scanner) replace(from, to int) int {
	s.out = append(append(s.out, s.text[s.copied:from]...), Mask...)
	s.copied = to
	return to
}

// word checks the word text[from:to], which may be a secret or name one, and returns where to
// continue.
func (s *scanner) word(from, to int) int {
	if begin, end := s.namedValue(from, to); end > begin {
		s.cards(from, to)
		return s.replace(begin, end)
	}
	word := s.text[from:to]
	if scheme(word) && to < len(s.text) && s.text[to] == ' ' {
		begin := to + 1
		end := begin
		for end < len(s.text) && isToken(s.text[end]) {
			end++
		}
		if looksRandom(s.text[begin:end]) {
			return s.replace(begin, end)
		}
	}
	if bytes.HasPrefix(word, []byte("eyJ")) && bytes.Count(word, []byte(".")) >= 2 {
		return s.replace(from, to)
	}
	return s.cards(from, to)
}

// cards replaces the card numbers that begin in the word text[from:to]. If a card number has spaces
// between its groups, each group is a word.
func (s *scanner) cards(from, to int) int {
	for i := from; i < to; {
		if !isDigit(s.text[i]) {
			i++
			continue
		}
		if n := max(card(s.text, i), cardAsFloat(s.text, i)); n > 0 {
			if i = s.replace(i, i+n); i > to {
				return i
			}
			continue
		}
		for i < to && isDigit(s.text[i]) {
			i++
		}
	}
	return to
}

// namedValue returns the position of the value that the word text[from:to] names, if it is a
// secret's name.
func (s *scanner) namedValue(from, to int) (begin, end int) {
	text, i := s.text, to
	if i < len(text) && text[i] == '\\' {
		i++
	}
	if i < len(text) && (text[i] == '"' || text[i] == '\'') {
		i++
	}
	i += spaces(text[i:])
	if i == len(text) {
		return 0, 0
	}
	switch {
	case text[i] != ':' && text[i] != '=' && text[i] != '>', !isSecret(text[from:to]):
		return 0, 0
	case text[i] == '>':
		if i != to || from == 0 || text[from-1] != '<' && text[from-1] != ':' {
			return 0, 0
		}
		length := bytes.IndexByte(text[i+1:], '<')
		if length < 0 {
			length = len(text) - i - 1
		}
		return i + 1, i + 1 + length
	}
	if i++; i < len(text) && (text[i] == '=' || text[i] == '>') { // == and :=, =>
		i++
	}
	i += spaces(text[i:])
	return valueAt(text, i, lined(text[from:to]))
}

// valueAt returns the position of the value that begins at i. wholeLine says that the value may
// contain spaces without being quoted.
func valueAt(text []byte, i int, wholeLine bool) (begin, end int) {
	rest := text[i:]
	if len(rest) == 0 {
		return 0, 0
	}
	switch c := rest[0]; {
	case c == '\\' && len(rest) > 1 && (rest[1] == '"' || rest[1] == '\''): // JSON within JSON
		end := 2
		for end < len(rest) && !bytes.HasPrefix(rest[end:], rest[:2]) {
			if bytes.HasPrefix(rest[end:], []byte(`\\`)) { // a backslash, which escapes what follows it
				end += 2
			}
			if end < len(rest) && rest[end] == '\\' {
				end++
			}
			end++
		}
		return i + 2, i + min(end, len(rest))
	case c == '"' || c == '\'' || c == '`':
		end := 1
		for end < len(rest) && rest[end] != c {
			if rest[end] == '\\' {
				end++
			}
			end++
		}
		return i + 1, i + min(end, len(rest))
	case c == '[' || c == '{':
		depth := 0
		for end, c := range rest {
			switch c {
			case '[', '{':
				depth++
			case ']', '}':
				depth--
			}
			if depth == 0 {
				return i, i + end + 1
			}
		}
		return i, len(text)
	}
	stop := " \t\r\n,;&\"'`)]}<>"
	if wholeLine {
		stop = "\r\n"
	}
	length := bytes.IndexAny(rest, stop)
	if length < 0 {
		length = len(rest)
	}
	if value := string(rest[:length]); value == "null" || value == "nil" {
		return 0, 0
	}
	return i, i + length
}

// secretEnds are the endings of names of secrets, without dashes, underscores and dots.
var secretEnds = [][]byte{
	[]byte("authorization"), []byte("cookie"), []byte("password"), []byte("passwd"), []byte("passphrase"),
	[]byte("pwd"), []byte("secret"),
	[]byte("secretkey"), []byte("token"), []byte("apikey"), []byte("accesskey"), []byte("privatekey"),
	[]byte("signingkey"),
	[]byte("credential"), []byte("credentials"), []byte("sessionid"), []byte("cardnumber"), []byte("cvv"),
	[]byte("cvc"),
}

// longestName is how many characters of a name are checked, from its end.
const longestName = 64

// isSecret reports whether a value of this name is a secret.
func isSecret(name []byte) bool {
	var letters [longestName]byte
	at := longestName
	for i := len(name) - 1; i >= 0 && at > 0; i-- {
		c := name[i]
		switch {
		case c == '-' || c == '_' || c == '.':
			continue
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		}
		at--
		letters[at] = c
	}
	for _, end := range secretEnds {
		if bytes.HasSuffix(letters[at:], end) {
			return true
		}
	}
	return false
}

// lined reports whether values of a header of this name may contain spaces.
func lined(name []byte) bool {
	lower := bytes.ToLower(name)
	return bytes.HasSuffix(lower, []byte("authorization")) || bytes.HasSuffix(lower, []byte("cookie"))
}

// scheme reports whether the word is an authentication scheme, so that a token follows.
func scheme(word []byte) bool {
	return bytes.EqualFold(word, []byte("bearer")) || bytes.EqualFold(word, []byte("basic"))
}

// looksRandom reports whether the text is a token rather than an English word.
func looksRandom(token []byte) bool {
	if len(token) < 8 {
		return false
	}
	for i, c := range token {
		if 'a' <= c && c <= 'z' || i == 0 && 'A' <= c && c <= 'Z' || i == len(token)-1 && c == '.' {
			continue
		}
		return true
	}
	return len(token) > 20
}

// card returns the length of the card number that begins at text[at], 0 if none does.
func card(text []byte, at int) int {
	withinWord := at > 0 && isLetterOrDigit(text[at-1]) && !afterEscape(text, at)
	fraction := at > 1 && text[at-1] == '.' && isDigit(text[at-2])
	if withinWord || fraction {
		return 0
	}
	var digits [19]byte
	var lengths [6]int
	groups := lengths[:0] // lengths of the complete groups of digits
	n, group, end := 0, 0, at
	var between []byte // the separator between groups
	best := 0
	for {
		for end < len(text) && isDigit(text[end]) && n < len(digits) {
			digits[n] = text[end] - '0'
			n, group, end = n+1, group+1, end+1
		}
		if group == 0 || end < len(text) && isLetterOrDigit(text[end]) || len(groups) == cap(groups) {
			return best
		}
		groups, group = append(groups, group), 0
		fraction = end+1 < len(text) && text[end] == '.' && isDigit(text[end+1])
		if !fraction && grouped(groups) && issued(digits[:n]) && luhn(digits[:n]) {
			best = end - at
		}
		separator := separatorAt(text[end:])
		if len(separator) == 0 || len(between) > 0 && !bytes.Equal(separator, between) {
			return best
		}
		between = separator
		end += len(separator)
	}
}

// cardAsFloat is card for a number that JSON has decoded into a float64, as Go prints it:
// 4.111111111111111e+15.
func cardAsFloat(text []byte, at int) int {
	const fewest = 10 // digits before the zeros at the end, which are not printed
	if at > 0 && (isWord(text[at-1]) && text[at-1] != '-' && text[at-1] != '_') || at+2 >= len(text) || text[at+1] != '.' {
		return 0
	}
	var digits [19]byte
	digits[0] = text[at] - '0'
	n, end := 1, at+2
	for end < len(text) && isDigit(text[end]) && n < len(digits) {
		digits[n] = text[end] - '0'
		n, end = n+1, end+1
	}
	if n < fewest || end+4 > len(text) || text[end] != 'e' || text[end+1] != '+' || !isDigit(text[end+2]) ||
		!isDigit(text[end+3]) {
		return 0
	}
	length := int(text[end+2]-'0')*10 + int(text[end+3]-'0') + 1
	end += 4
	if length < n || length > len(digits) || end < len(text) && isLetterOrDigit(text[end]) {
		return 0
	}
	if !issued(digits[:length]) || !luhn(digits[:length]) {
		return 0
	}
	return end - at
}

// afterEscape reports whether the character before text[at] ends an escape such as \n
// or %20.
func afterEscape(text []byte, at int) bool {
	return at > 1 && text[at-2] == '\\' && !isDigit(text[at-1]) || at > 2 && escaped(text[at-3:])
}

// separatorAt returns the separator between groups of a card number that text begins with, if any.
func separatorAt(text []byte) []byte {
	for _, separator := range []string{" ", "-", "+", "%20", "\u00a0"} {
		if bytes.HasPrefix(text, []byte(separator)) {
			return text[:len(separator)]
		}
	}
	return nil
}

// grouped reports whether card numbers are written in groups of these lengths.
func grouped(groups []int) bool {
	switch len(groups) {
	case 1:
		return true
	case 3: // American Express, Diners Club
		return groups[0] == 4 && groups[1] == 6 && (groups[2] == 5 || groups[2] == 4)
	case 4, 5:
		for _, g := range groups[:4] {
			if g != 4 {
				return false
			}
		}
		return len(groups) == 4 || groups[4] <= 3
	}
	return false
}

// issued reports whether a network issues card numbers of this length with this beginning.
func issued(digits []byte) bool {
	n := len(digits)
	if n < 13 {
		return false
	}
	prefix := 0
	for _, d := range digits[:4] {
		prefix = prefix*10 + int(d)
	}
	between := func(from, to int) bool { return from <= prefix && prefix <= to }
	switch {
	case between(4000, 4999): // Visa
		return n == 13 || n == 16 || n == 19
	case between(5100, 5599), between(2221, 2720): // Mastercard
		return n == 16
	case between(3400, 3499), between(3700, 3799): // American Express
		return n == 15
	case between(3000, 3059), between(3600, 3699), between(3800, 3999): // Diners Club
		return n == 14 || n == 16
	case between(3528, 3589): // JCB
		return n >= 16
	case between(5000, 5099), between(5600, 5899): // Maestro
		return n >= 16
	case between(6000, 6999): // Discover, UnionPay, Maestro, RuPay
		return n >= 16
	}
	return false
}

func luhn(digits []byte) bool {
	sum := 0
	for i := range digits {
		d := int(digits[len(digits)-1-i])
		if i%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return sum%10 == 0
}

// escaped reports whether text begins with a percent-encoded character.
func escaped(text []byte) bool {
	return len(text) > 2 && text[0] == '%' && isHex(text[1]) && isHex(text[2])
}

func spaces(text []byte) int { return len(text) - len(bytes.TrimLeft(text, " \t")) }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetterOrDigit(c byte) bool {
	return isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func isHex(c byte) bool { return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }

// isWord reports whether c can be part of a name. Tokens may have further characters, see isToken.
func isWord(c byte) bool { return isLetterOrDigit(c) || c == '_' || c == '-' || c == '.' }

func isToken(c byte) bool { return isWord(c) || c == '+' || c == '/' || c == '=' || c == '~' }
