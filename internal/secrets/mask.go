// Package secrets masks passwords in texts for people.
package secrets

import (
	"regexp"
	"strings"
)

// The user part of a URL ends at its last @, because an unencoded password may contain one.
var (
	urlPassword     = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s:@/]*):[^\s]*@`)
	networkPassword = regexp.MustCompile(`([^\s:@/]*):[^\s]*@(\w+\(|(?:tcp[46]?|unix)?/)`) // of a DSN of MySQL
	namedPassword   = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&"'` + "`" + `]+)`)
)

const mask = "xxxxx"

// Mask returns text with everything masked that may be a password: errors quote DSNs and URLs,
// including mistyped ones.
func Mask(text string) string {
	if strings.Contains(text, "://") {
		text = urlPassword.ReplaceAllString(text, "${1}:"+mask+"@")
	}
	if strings.Contains(text, "@") {
		text = networkPassword.ReplaceAllString(text, "${1}:"+mask+"@${2}")
	}
	if strings.Contains(text, "=") && strings.Contains(strings.ToLower(text), "password") {
		text = namedPassword.ReplaceAllString(text, "${1}"+mask)
	}
	return text
}
