package fingerprint

import (
	"net/http"
	"strconv"
	"strings"
)

// Each of these returns where what begins at i ends, 0 if it is not of its kind.

// codeWords are the words before a code, in lower case, with the code's largest length. IDs are longer, or stand after
// other words.
var codeWords = map[string]int{"status": 3, "http": 3, "code": 4, "error": 4, "errno": 4, sqlState: 5}

const sqlState = "sqlstate" // its codes have letters, too

// codeEnd returns the end of a code that distinguishes causes, such as an HTTP status, by the word before it ("status
// 404", "StatusCode: 503", "exit status 1", "SQLSTATE 42P01", "Error 1062"), or by the status text after it ("502 Bad
// Gateway").
func codeEnd(text string, i int) int {
	end, digits := i, 0
	for end < len(text) && isAlnum(text[end]) {
		if isDigit(text[end]) {
			digits++
		}
		end++
	}
	if end-i > codeWords[sqlState] || digits == 0 {
		return 0
	}
	if code, err := strconv.Atoi(text[i:end]); err == nil && http.StatusText(code) != "" &&
		strings.HasPrefix(text[end:], " "+http.StatusText(code)) {
		return end
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
	if maxDigits := codeWords[name]; word == i || end-i > maxDigits || digits < end-i && name != sqlState {
		return 0
	}
	return end
}

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
	end, at := i, 0
	for end < len(text) && (isAlnum(text[end]) || strings.IndexByte("._%+-@", text[end]) >= 0) {
		if text[end] == '@' {
			if at > 0 {
				return 0
			}
			at = end
		}
		end++
	}
	if end = trimPunctuation(text, i, end); at == 0 || end <= at+1 {
		return 0
	}
	return end
}

// ipv6End: eight groups, or "::" somewhere, and a digit; a time of day has neither.
func ipv6End(text string, i int) int {
	end, colons, double, digit := i, 0, false, false
	for end < len(text) && (isHex(text[end]) || text[end] == ':' || text[end] == '.') {
		if text[end] == ':' {
			colons++
			double = double || end > i && text[end-1] == ':'
		}
		digit = digit || isDigit(text[end])
		end++
	}
	if !digit || !double && colons != 7 || colons < 2 || end < len(text) && isAlnum(text[end]) {
		return 0
	}
	return trimPunctuation(text, i, end)
}

// bracketedIPv6 returns the end of an IPv6 address in brackets, with its port.
func bracketedIPv6(text string, i int) int {
	end, colons := i+1, 0
	for end < len(text) && (isHex(text[end]) || text[end] == ':' || text[end] == '.') {
		if text[end] == ':' {
			colons++
		}
		end++
	}
	if colons < 2 || end == len(text) || text[end] != ']' {
		return 0
	}
	if end++; end+1 < len(text) && text[end] == ':' && isDigit(text[end+1]) {
		return numberEnd(text, end+1)
	}
	return end
}

// hexEnd returns the end of 0x and hexadecimal digits, or of eight and more of these with a digit among them.
func hexEnd(text string, i int) int {
	end, digits := i, 0
	if strings.HasPrefix(text[i:], "0x") || strings.HasPrefix(text[i:], "0X") {
		end, digits = i+2, 8
	}
	for end < len(text) && isHex(text[end]) {
		if isDigit(text[end]) {
			digits |= 1
		}
		end++
	}
	if digits == 0 || digits < 8 && end-i < 8 || end < len(text) && isAlnum(text[end]) || digits >= 8 && end == i+2 {
		return 0
	}
	return end
}

// mixedEnd returns the end of letters with several numbers between them, as random IDs have. It leaves out durations
// and times, which begin with a digit.
func mixedEnd(text string, i int) int {
	end, numbers, letters := i, 0, false
	for end < len(text) && isAlnum(text[end]) {
		if isDigit(text[end]) {
			if end == i || !isDigit(text[end-1]) {
				numbers++
			}
		} else {
			letters = true
		}
		end++
	}
	if numbers < 2 || !letters || isDigit(text[i]) && numberEnd(text, i) > end {
		return 0
	}
	return end
}

// numberEnd returns the end of digits with signs between them (decimals, dates, times, versions, addresses), and with
// units or a zone after them.
func numberEnd(text string, i int) int {
	for {
		for i < len(text) && isDigit(text[i]) {
			i++
		}
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

func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
func isAlnum(c byte) bool  { return isDigit(c) || isLetter(c) }
func isHex(c byte) bool    { return isDigit(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F' }
