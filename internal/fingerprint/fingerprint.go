// Package fingerprint names the kinds of failures: the store writes a fingerprint beside each error text, and
// operators' groups go by it (contract 11.2).
package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/redact"
)

// normalisedRunes is how much of an error names its kind. The stored text was cut already, at a place that depends on
// how long the varying parts are: its end must not count.
const normalisedRunes = 300

// Of names the failure group of a handler key and the text of an error. Errors that differ only in what Normalise
// leaves out, or in secrets that redact.Common knows, have the same fingerprint. The text has been redacted by the
// application's hook before. Common is applied to it in any case: an operator who guesses a secret must not be able to
// confirm it by the fingerprint of an error that the hook did not see.
func Of(handlerKey, text string) string {
	common := redact.Common(redact.Value{Part: redact.PartError, Bytes: []byte(text)})
	normalised := Normalise(strings.ReplaceAll(string(common), redact.Mask, anyNumber))
	sum := sha256.Sum256([]byte(handlerKey + "\x00" + normalised))
	return hex.EncodeToString(sum[:Length/2])
}

// anyNumber replaces the mask of redact.Common: some of the numbers that Normalise leaves out pass as card numbers, and
// that must not make another failure. It is too long to be a code.
const anyNumber = "000000"

// Length is how many characters a fingerprint has.
const Length = 16

// Normalise replaces the parts of an error's text that differ from one message to the next: numbers, UUIDs,
// hexadecimal, times, durations, network and mail addresses, and quoted text. Spaces become single. It takes one pass
// and no regular expressions, because it runs on every failure. Codes that distinguish causes stay: HTTP statuses,
// SQLSTATEs, error numbers.
func Normalise(text string) string {
	n := normaliser{text: strings.ToValidUTF8(panicCause(text), "\uFFFD")}
	n.out.Grow(min(len(n.text), normalisedRunes))
	for n.at < len(n.text) && n.runes < normalisedRunes {
		n.step()
	}
	return strings.TrimRight(n.out.String(), " ")
}

// panicMark is how the text of a recovered panic begins.
const panicMark = "handler panicked: "

// panicCause reduces the text of a panic to its value and the function that panicked: the same value from two functions
// is two causes, and the function's callers do not count. Any other text stays as it is.
func panicCause(text string) string {
	_, panicked, found := strings.Cut(text, panicMark)
	value, stack, hasStack := strings.Cut(panicked, "\n\n")
	if !found || !hasStack {
		return text
	}
	if runes := []rune(value); len(runes) > normalisedRunes/2 {
		value = string(runes[:normalisedRunes/2])
	}
	function, _, _ := strings.Cut(stack, "\n")
	return panicMark + value + " in " + function
}

type normaliser struct {
	text  string
	at    int
	out   strings.Builder
	runes int
	last  rune // written
	// inWord: the byte before at is a letter or digit that was written as it is.
	inWord bool
}

func (n *normaliser) step() {
	c := n.text[n.at]
	switch {
	case c == '"' || c == '`' || c == '\'' && !n.inWord:
		n.quoted(c)
	case isAlnum(c) && !n.inWord:
		n.word()
	case (c == '-' || c == '+') && !n.inWord && n.at+1 < len(n.text) && isDigit(n.text[n.at+1]):
		n.at++ // the number's sign
	case isDigit(c):
		n.replace(numberEnd(n.text, n.at))
	case c == '[':
		if end := bracketedIPv6(n.text, n.at); end > 0 {
			n.replace(end)
			return
		}
		n.keep()
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		n.at, n.inWord = n.at+1, false
		if n.last != ' ' && n.last != 0 {
			n.write(' ')
		}
	default:
		n.keep()
	}
}

// keep writes a character as it is.
func (n *normaliser) keep() {
	r, size := utf8.DecodeRuneInString(n.text[n.at:])
	n.at += size
	n.inWord = size == 1 && isAlnum(byte(r))
	n.write(r)
}

func (n *normaliser) write(r rune) {
	if n.runes == normalisedRunes {
		return
	}
	n.out.WriteRune(r)
	n.last = r
	n.runes++
}

// replace writes the placeholder for the text up to end, once for several.
func (n *normaliser) replace(end int) {
	n.at, n.inWord = end, false
	if n.last != '#' {
		n.write('#')
	}
}

// quoted replaces quoted text. An apostrophe that nothing answers is one.
func (n *normaliser) quoted(mark byte) {
	for i := n.at + 1; i < len(n.text); i++ {
		switch {
		case n.text[i] == '\\' && mark == '"':
			i++
		case n.text[i] == mark && (mark != '\'' || i+1 == len(n.text) || !isAlnum(n.text[i+1])):
			n.write(rune(mark))
			n.replace(i)
			n.keep()
			return
		}
	}
	n.keep()
}

// word handles text that begins with a letter or digit.
func (n *normaliser) word() {
	if end := codeEnd(n.text, n.at); end > 0 {
		for n.at < end {
			n.keep()
		}
		return
	}
	for _, whole := range []func(string, int) int{uuidEnd, mailEnd, ipv6End, hexEnd, mixedEnd} {
		if end := whole(n.text, n.at); end > 0 {
			n.replace(end)
			return
		}
	}
	if isDigit(n.text[n.at]) {
		n.replace(numberEnd(n.text, n.at))
		return
	}
	n.keep()
}

// Each of these returns where what begins at i ends, 0 if it is not of its kind.

// codeWords are the words before a code, in lower case, with the code's largest length. IDs are longer, or stand after
// other words.
var codeWords = map[string]int{"status": 3, "http": 3, "smtp": 3, "code": 4, "error": 4, "errno": 4, sqlState: 5}

const sqlState = "sqlstate" // its codes have letters, too

// codeEnd returns the end of a code that distinguishes causes, by the word before it ("status 404", "StatusCode: 503",
// "exit status 1", "SQLSTATE 42P01", "Error 1062"), or by the status text after it ("502 Bad Gateway"), and of a reply
// of SMTP.
func codeEnd(text string, i int) int {
	end := span(text, i, isAlnum)
	if end-i > codeWords[sqlState] || !strings.ContainsAny(text[i:end], digits) {
		return 0
	}
	if code, err := strconv.Atoi(text[i:end]); err == nil && http.StatusText(code) != "" &&
		strings.HasPrefix(text[end:], " "+http.StatusText(code)) {
		return end
	}
	if reply := replyEnd(text, i, end); reply > 0 {
		return reply
	}
	if end+1 < len(text) && strings.IndexByte("-.,:/+", text[end]) >= 0 && isAlnum(text[end+1]) {
		return 0 // a date, an address or another longer number
	}
	word := i
	for word > 0 && strings.IndexByte(" :=(", text[word-1]) >= 0 {
		word--
	}
	from := word
	for from > 0 && isLetter(text[from-1]) {
		from--
	}
	name := strings.ToLower(text[from:word])
	if word < i && strings.HasSuffix(name, "code") { // StatusCode: 404
		name = "code"
	}
	if maxDigits := codeWords[name]; word == i || end-i > maxDigits || span(text, i, isDigit) < end && name != sqlState {
		return 0
	}
	return end
}

// replies are the codes by which SMTP servers refuse. They are few, so that other numbers make few groups.
var replies = []string{"421", "432", "450", "451", "452", "454", "455", "500", "501", "502", "503", "504", "521", "523",
	"530", "534", "535", "538", "550", "551", "552", "553", "554", "555", "556"}

// replyEnd returns the end of a reply of SMTP between i and end: by the status that follows it ("421 4.7.0"), which
// belongs to it, or at the beginning of the text or after a colon, before a word ("mail: 421 try again").
func replyEnd(text string, i, end int) int {
	if !slices.Contains(replies, text[i:end]) || end+1 >= len(text) || text[end] != ' ' && text[end] != '-' {
		return 0
	}
	if status := enhancedStatus.FindString(text[end+1 : min(len(text), end+12)]); status != "" {
		return end + 1 + len(strings.TrimRight(status, " "))
	}
	if (i == 0 || strings.HasSuffix(text[:i], ": ")) && isLetter(text[end+1]) {
		return end
	}
	return 0
}

// enhancedStatus is only matched after a reply's code.
var enhancedStatus = regexp.MustCompile(`^[245]\.[0-9]{1,3}\.[0-9]{1,3} `)

// uuidEnd: 8-4-4-4-12 hexadecimal digits.
func uuidEnd(text string, i int) int {
	const length = 36
	if len(text) < i+length || len(text) > i+length && isAlnum(text[i+length]) {
		return 0
	}
	for k := range length {
		if dash := k == 8 || k == 13 || k == 18 || k == 23; dash != (text[i+k] == '-') || !dash && !isHex(text[i+k]) {
			return 0
		}
	}
	return i + length
}

// mailEnd: name@host.
func mailEnd(text string, i int) int {
	end := span(text, i, func(c byte) bool { return isAlnum(c) || strings.IndexByte("._%+-@", c) >= 0 })
	name, host, found := strings.Cut(text[i:end], "@")
	end = trimPunctuation(text, i, end)
	if !found || strings.Contains(host, "@") || end <= i+len(name)+1 {
		return 0
	}
	return end
}

// ipv6End: eight groups, or "::" somewhere, and a digit; a time of day has neither.
func ipv6End(text string, i int) int {
	end := span(text, i, inAddress)
	colons, double := strings.Count(text[i:end], ":"), strings.Contains(text[i:end], "::")
	if !strings.ContainsAny(text[i:end], digits) || !double && colons != 7 || colons < 2 ||
		end < len(text) && isAlnum(text[end]) {
		return 0
	}
	return trimPunctuation(text, i, end)
}

// bracketedIPv6 returns the end of an IPv6 address in brackets, with its port.
func bracketedIPv6(text string, i int) int {
	end := span(text, i+1, inAddress)
	if strings.Count(text[i:end], ":") < 2 || end == len(text) || text[end] != ']' {
		return 0
	}
	if end++; end+1 < len(text) && text[end] == ':' && isDigit(text[end+1]) {
		return numberEnd(text, end+1)
	}
	return end
}

// hexEnd returns the end of 0x and hexadecimal digits, or of eight and more of these with a digit among them.
func hexEnd(text string, i int) int {
	from := i
	if strings.HasPrefix(text[i:], "0x") || strings.HasPrefix(text[i:], "0X") {
		from += 2
	}
	end := span(text, from, isHex)
	short := from == i && (end-i < 8 || !strings.ContainsAny(text[i:end], digits))
	if short || end == from || end < len(text) && isAlnum(text[end]) {
		return 0
	}
	return end
}

// mixedEnd returns the end of letters with several numbers between them, as random IDs have. It leaves out durations
// and times, which begin with a digit.
func mixedEnd(text string, i int) int {
	end, numbers := span(text, i, isAlnum), 0
	for k := i; k < end; k++ {
		if isDigit(text[k]) && (k == i || !isDigit(text[k-1])) {
			numbers++
		}
	}
	if numbers < 2 || isDigit(text[i]) && numberEnd(text, i) > end { // letters are between the numbers
		return 0
	}
	return end
}

// numberEnd returns the end of digits with signs between them (decimals, dates, times, versions, addresses), and with
// units or a zone after them.
func numberEnd(text string, i int) int {
	for {
		i = span(text, i, isDigit)
		if i = unitEnd(text, i); i < len(text) && isDigit(text[i]) {
			continue // 1m30s
		}
		if i+1 < len(text) && strings.IndexByte("-.,:/+T", text[i]) >= 0 && isDigit(text[i+1]) {
			i++
			continue
		}
		if i < len(text) && text[i] == 'Z' && (i+1 == len(text) || !isAlnum(text[i+1])) {
			return i + 1
		}
		return i
	}
}

// unitEnd returns the end of the unit of time at i, or i if there is none.
func unitEnd(text string, i int) int {
	for _, unit := range []string{"ns", "us", "µs", "μs", "ms", "s", "m", "h"} {
		if end := i + len(unit); strings.HasPrefix(text[i:], unit) && (end == len(text) || !isLetter(text[end])) {
			return end
		}
	}
	return i
}

// trimPunctuation leaves out the end of the sentence.
func trimPunctuation(text string, from, end int) int {
	for end > from && !isAlnum(text[end-1]) {
		end--
	}
	return end
}

// span returns the end of the characters from i on that are of a kind.
func span(text string, i int, of func(c byte) bool) int {
	for i < len(text) && of(text[i]) {
		i++
	}
	return i
}

const digits = "0123456789"

func inAddress(c byte) bool { return isHex(c) || c == ':' || c == '.' }

func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
func isAlnum(c byte) bool  { return isDigit(c) || isLetter(c) }
func isHex(c byte) bool    { return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }
