// Package fingerprint names the kinds of failures: the store writes a fingerprint beside each error text, and
// operators' groups go by it (contract 11.2).
package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
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
