package redact

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gorm-inbox/inbox/internal/secrets"
)

// Mask replaces a secret in the result of Common.
const Mask = "[redacted]"

// Common is a Hook that replaces the usual secrets of applications with Mask:
//
//   - card numbers of the usual networks that pass the Luhn check: unspaced, in groups with spaces or
//     dashes, or as fmt prints a float64 (4.111111111111111e+15);
//   - the value of each header, attribute, JSON member, XML element, form field, flag, "name=value" or
//     "name: value" whose name, in upper or lower case, ends in password, secret, token, apikey,
//     authorization, cookie and the like, with or without dashes and underscores, or in the word
//     pass, pin, sig or otp;
//   - tokens after Bearer and Basic, JSON Web Tokens, private keys, and tokens that begin as those of
//     well-known services do;
//   - passwords in URLs, by xxxxx, and in other data source names.
//
// UUIDs, times, offsets and most other numbers stay, but one number in ten that begins like a card's passes the Luhn
// check. It returns v.Bytes itself if it finds nothing, and takes time in proportion to v.Bytes. Do not rely on it for
// secrets that only the application can recognize, such as names and addresses, nor for payloads that are compressed or
// encoded.
func Common(v Value) []byte {
	if len(v.Bytes) > 0 && secretName.MatchString(v.Name) {
		return []byte(Mask)
	}
	text := v.Bytes
	if bytes.Contains(text, []byte("://")) {
		if masked := secrets.Mask(string(text)); masked != string(text) {
			text = []byte(masked)
		}
	}
	found := cardNumbers(text)
	lower := asciiLower(text)
	for _, r := range rules {
		found = append(found, r.find(text, lower)...)
	}
	return mask(text, found)
}

// span is where a secret is.
type span struct{ from, to int }

// mask returns text with Mask in place of the spans, and of several that overlap.
func mask(text []byte, spans []span) []byte {
	if len(spans) == 0 {
		return text
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	var out []byte
	copied := 0
	for i, s := range spans {
		if i == 0 || s.from >= copied {
			out = append(append(out, text[copied:s.from]...), Mask...)
		}
		copied = max(copied, s.to)
	}
	return append(out, text[copied:]...)
}

// asciiLower returns text with small letters, each where it was.
func asciiLower(text []byte) []byte {
	lower := bytes.Clone(text)
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	return lower
}

// rule finds secrets of one form. Go's regular expressions take time in proportion to the text that they read. For a
// rule to take linear time over the whole text, its form must match the text that it reads, or fail before it has read
// far.
type rule struct {
	// hints are texts in small letters, separated by spaces, at which a match may begin.
	hints string
	// before matches the text before a hint, if it is not nil, by at most reach bytes of it. If it has a group, the
	// secret begins there.
	before *regexp.Regexp
	reach  int
	// form matches the text from the hint on. The secret is, or ends with, the one group that takes part.
	form *regexp.Regexp
	// isSecret confirms a match; nil confirms all.
	isSecret func(secret string) bool
}

// find returns where the rule finds secrets. lower is the text in small letters.
func (r rule) find(text, lower []byte) (found []span) {
	for hint := range strings.FieldsSeq(r.hints) {
		for at := bytes.Index(lower, []byte(hint)); at >= 0; {
			s, end := r.match(text, at)
			if s.from < s.to && (r.isSecret == nil || r.isSecret(string(text[s.from:s.to]))) {
				found = append(found, s)
			}
			if at = bytes.Index(lower[end:], []byte(hint)); at >= 0 {
				at += end
			}
		}
	}
	return found
}

// match returns where the secret is that belongs to the hint at a position, and where to continue.
func (r rule) match(text []byte, at int) (s span, end int) {
	begin, inBefore := max(at-r.reach, 0), false
	if r.before != nil {
		before := r.before.FindSubmatchIndex(text[begin:at])
		if before == nil {
			return s, at + 1
		}
		if inBefore = len(before) > 2; inBefore {
			s = span{begin + before[2], at}
		}
	}
	match := r.form.FindSubmatchIndex(text[at:])
	if match == nil {
		return span{}, at + 1
	}
	for i := 2; i < len(match) && !inBefore; i += 2 {
		if match[i] >= 0 {
			s = span{at + match[i], at + match[i+1]}
		}
	}
	return s, at + match[1]
}

// Parts of the forms.
const (
	// lines are names whose values contain spaces without being quoted.
	lines = `(?:authorization|cookies?)`
	// names are other names of secrets, or their ends.
	names = `(?:pass[-_.]?(?:words?|wd|phrase|code)|pwd|secrets?|bearer|token|credentials?|sess(?:ion)?[-_.]?id|` +
		`card[-_.]?number|cv[cv])(?:[-_.]?(?:hash|confirm(?:ation)?|\d+))?`
	nameHints = "pass pwd secret bearer token credential sess card cvv cvc"
	// keys are the words before "key" in names of secrets.
	keys = `(?:access|account|api|auth|encryption|functions?|master|private|secret|shared|signing|subscription)[-_.]?`
	// shorts are names of secrets if they are a word.
	shorts     = `(?:pass|pin|sig|otp)`
	shortHints = "pass pin sig otp"
	// camel is the end of a name such as dbPass.
	camel = `(?-i:[a-z0-9](?:Pass|Pin|Sig|Otp))`
	// anyName is a name of a secret after any text.
	anyName = `(?:` + lines + `|` + names + `|` + keys + `key|(?:\b|_)` + shorts + `|` + camel + `)`
	// separator is between a name, which may be quoted or in brackets, and its value.
	separator = `(?:\\*["'` + "`" + `]|&quot;|&#34;|\]|%5d)?[ \t]*[:=]=?>?[ \t]*`
	// encodedValue is a separator and a value in a URL's encoding.
	encodedValue = `(?:%2[27]|%5d)?(?:%20)*%3[ad](?:%20)*(?:%2[27])?((?:[^%\s&"'<>]|%[^27\s]|%2[^267c\s]|%7[^d\s])+)`
	// quoted is a value in quotes, of JSON within JSON too. The end may be missing.
	quoted = `\\"((?:[^"\\]|\\\\(?:\\["\\]|[^"\\])|\\[^"\\])*)|\\+["']([^"']*)|` +
		`"((?:[^"\\]|\\[\s\S]|"")*)|'((?:[^'\\]|\\[\s\S]|'')*)|` + "`([^`]*)|" + `(?:&quot;|&#34;)((?:[^&]|&[^q#])*)`
	// unquoted is a value without quotes.
	unquoted = `((?:\\.|[^\s,;&"'` + "`" + `)\]}<>])+)`
)

// nested is a list or an object, or all of the text if it does not end. Inner ones may be four levels deep.
var nested = func() string {
	const text = `"(?:[^"\\]|\\[\s\S])*"|[^\[\]{}]`
	inner := `(?:` + text + `)*`
	for range 4 {
		inner = `(?:` + text + `|[\[{]` + inner + `[\]}])*`
	}
	return `((?:\[\]\w+)?[\[{]` + inner + `[\]}])|([\[{][\s\S]*)`
}()

// value is any value. anyValue is a value with the separator after its name.
var (
	value    = `(?:` + quoted + `|` + nested + `|` + unquoted + `)`
	anyValue = `(?:` + separator + value + `|` + encodedValue + `)`
)

var (
	secretName = regexp.MustCompile(`(?i)` + anyName + `$`)
	// apart matches before a word, shortly before it.
	apart = regexp.MustCompile(`(?:^|[^A-Za-z0-9]|\\[nrt]|%[0-9A-Fa-f]{2})$`)
)

// rules are the forms of secrets.
var rules = []rule{
	{hints: "authorization cookie", isSecret: isValue,
		form: begin(lines + `(?:` + separator + `(?:` + quoted + `|` + nested + `|([^\r\n]+))|` + encodedValue + `)`)},
	{hints: nameHints, form: begin(names + anyValue), isSecret: isValue},
	{hints: "key", before: regexp.MustCompile(`(?i)` + keys + `$`), reach: 16, isSecret: isValue,
		form: begin(`key` + anyValue)},
	{hints: shortHints, before: apart, reach: 3, form: begin(shorts + anyValue), isSecret: isValue},
	{hints: shortHints, before: regexp.MustCompile(`[a-z0-9]$`), reach: 1, isSecret: isValue,
		form: regexp.MustCompile(`^(?:Pass|Pin|Sig|Otp)` + anyValue)},
	// signature is a query's parameter: in text about signatures it has a colon.
	{hints: "signature=", form: begin(`signature=` + value)},
	// Flags.
	{hints: "-", before: regexp.MustCompile(`(?:^|[\s"'\[,])$`), reach: 1, isSecret: isArgument,
		form: begin(`--?[\w-]*` + anyName + `(?:["'],[ \t]*|[ \t]+)` + value)},
	{hints: "-u --user --proxy-user", before: regexp.MustCompile(`(?:^|\s)$`), reach: 1,
		form: regexp.MustCompile(`^(?:-u|--user|--proxy-user)[ =]["']?[^\s:"']*:([^\s"']+)`)},
	// XML's elements, and members called name and value.
	{hints: "<", isSecret: isValue,
		form: begin(`<[\w.:-]*` + anyName + `(?:\s[^<>]*)?>(?:(\s*<!\[CDATA\[[\s\S]*?(?:\]\]>|\z))|([^<]+))`)},
	{hints: "value", before: regexp.MustCompile(`(?i)["'][\w.-]*` + anyName + `\\*["'][\s,]+\\*["']?$`), reach: 64,
		form: begin(`value` + separator + value), isSecret: isValue},
	// SQL.
	{hints: "password identified", form: begin(`(?:password|identified\s+by)\s+'((?:[^']|'')*)`)},
	// Tokens.
	{hints: "bearer basic", form: begin(`(?:bearer|basic)[ \t]+([\w.~+/=-]{8,})`), isSecret: isToken},
	{hints: "private", form: begin(`private key-----([\s\S]*?)(?:-----END|\z)`)},
	{hints: "eyj", before: apart, reach: 3, form: regexp.MustCompile(`^(eyJ[\w.-]*)`), isSecret: isJWT},
	{hints: "gh github_pat glpat- xox sk rk_ aiza ya29. npm_ sg. hvs.", before: apart, reach: 3, form: regexp.MustCompile(
		`^((?:gh[opusr]|github_pat|npm)_\w{20,}|(?:glpat|xox[a-z]|sk)-[\w-]{16,}|[sr]k_(?:live|test)_\w{10,}|` +
			`AIza[\w-]{30,}|(?:ya29|SG|hvs)\.[\w.-]{20,})`)},
	// Data source names: user:password@tcp(host), user:password@host:port, thin:user/password@host.
	{hints: "@", before: regexp.MustCompile(`[\w.%-]+:(/?[^\s/]\S*|/)$`), reach: 64, isSecret: isUnmasked,
		form: begin(`@(?:[a-z0-9]*\(|/|[\w.-]+:\d)`)},
	{hints: "@", before: regexp.MustCompile(`(?i)thin:[^\s/@]+/([^\s@]*)$`), reach: 64, form: begin(`@`)},
}

// begin returns an expression that matches at the beginning of a text, in small and capital letters.
func begin(form string) *regexp.Regexp { return regexp.MustCompile(`^(?i:` + form + `)`) }

// isValue reports whether the value of a secret's name is there.
func isValue(value string) bool { return value != "null" && value != "nil" }

// isUnmasked reports whether the password of a data source name still needs a mask: a URL's password is masked before.
func isUnmasked(password string) bool { return password != "xxxxx" }

// isArgument reports whether the word after a flag is its value rather than a part of a sentence.
func isArgument(word string) bool {
	return !slices.Contains([]string{"is", "was", "must", "may", "cannot", "requires", "needs", "and", "or", "not",
		"instead", "flag", "option"}, word)
}

// wording matches an English word.
var wording = regexp.MustCompile(`^[A-Za-z][a-z]{0,19}\.?$`)

// isJWT reports whether the text has the three parts of a JSON Web Token.
func isJWT(text string) bool { return strings.Count(text, ".") >= 2 }

// isToken reports whether the text is a token rather than an English word.
func isToken(text string) bool { return !wording.MatchString(text) }

// maxCard is how long a card number is at most: five groups with the longest separator between them.
const maxCard = 4*4 + 3 + 4*len("%20")

// cards are the forms in which a card number is written, longer ones first.
var cards = func() (forms []*regexp.Regexp) {
	for _, form := range []string{`\d{4}_\d{4}_\d{4}_\d{4}_\d{1,3}`, `\d{4}_\d{4}_\d{4}_\d{4}`, `\d{4}_\d{6}_\d{4,5}`} {
		var separated []string
		for _, separator := range []string{` `, `-`, `\+`, `%20`, "\u00a0"} {
			separated = append(separated, strings.ReplaceAll(form, "_", separator))
		}
		forms = append(forms, regexp.MustCompile(`^(?:`+strings.Join(separated, "|")+`)`))
	}
	return append(forms, regexp.MustCompile(`^\d{13,19}`), regexp.MustCompile(`^\d\.\d{9,18}e\+1\d`))
}()

// Digits do not begin a card number within a word or after a decimal point, and do not end one before a letter, a digit
// or decimals. The letter of \n and the digits of %20 belong to no word.
var (
	within  = regexp.MustCompile(`(?:[A-Za-z0-9]|\d\.)$`)
	escape  = regexp.MustCompile(`(?:\\[^\d]|%[0-9A-Fa-f]{2})$`)
	goesOn  = regexp.MustCompile(`^(?:[A-Za-z0-9]|\.\d)`)
	between = regexp.MustCompile(`%20|\D`)
)

// cardNumbers returns where card numbers are.
func cardNumbers(text []byte) (found []span) {
	for i := 0; i < len(text); {
		if !isDigit(text[i]) {
			i++
			continue
		}
		begin := i
		for i < len(text) && isDigit(text[i]) {
			i++
		}
		if n := i - begin; n != 1 && n != 4 && n < 13 {
			continue // no form begins with so many digits
		}
		before := text[max(begin-3, 0):begin]
		if n := cardAt(text[begin:]); n > 0 && (!within.Match(before) || escape.Match(before)) {
			found = append(found, span{begin, begin + n})
			i = begin + n
		}
	}
	return found
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// cardAt returns the length of the card number that text begins with, 0 if it begins with none.
func cardAt(text []byte) int {
	for _, form := range cards {
		found := form.Find(text[:min(maxCard, len(text))])
		if found == nil || goesOn.Match(text[len(found):min(len(found)+2, len(text))]) {
			continue
		}
		digits := between.ReplaceAllString(string(found), "")
		if bytes.ContainsRune(found, 'e') { // JSON was decoded into a float64
			f, _ := strconv.ParseFloat(string(found), 64)
			digits = strconv.FormatFloat(f, 'f', -1, 64)
		}
		if isCard(digits) {
			return len(found)
		}
	}
	return 0
}

// isCard reports whether a network issues such card numbers and the Luhn check passes.
func isCard(digits string) bool { return issued.MatchString(digits) && luhn(digits) }

// issued are the beginnings and lengths of the networks' card numbers.
var issued = regexp.MustCompile(`^(?:` + strings.Join([]string{
	`4(?:\d{12}|\d{15}|\d{18})`,                                        // Visa
	`(?:5[1-5]\d\d|222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}`, // Mastercard
	`3[47]\d{13}`,                        // American Express
	`3(?:0[0-5]|[689]\d)\d{11}(?:\d\d)?`, // Diners Club
	`(?:35(?:2[89]|[3-8]\d)|50\d\d|5[6-8]\d\d|6\d{3})\d{12,15}`, // JCB, Maestro, Discover, UnionPay, RuPay
}, `|`) + `)$`)

func luhn(digits string) bool {
	sum := 0
	for i := range digits {
		d := int(digits[len(digits)-1-i] - '0')
		if i%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return sum%10 == 0
}
