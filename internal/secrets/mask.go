// Package secrets hides passwords in texts for people.
package secrets

import (
	"regexp"
	"strings"
)

// The user part of a URL ends at its last @, which a password that nobody encoded
// may hold.
var (
	urlPassword   = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s:@/]*):[^\s]*@`)
	namedPassword = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&"'` + "`" + `]+)`)
)

const mask = "xxxxx"

// Mask returns text with what may be a password in it masked: errors quote DSNs
// and URLs, also mistyped ones.
func Mask(text string) string {
	if strings.Contains(text, "://") {
		text = urlPassword.ReplaceAllString(text, "${1}:"+mask+"@")
	}
	if strings.Contains(text, "=") && strings.Contains(strings.ToLower(text), "password") {
		text = namedPassword.ReplaceAllString(text, "${1}"+mask)
	}
	return text
}
