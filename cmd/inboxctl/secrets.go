package main

import "regexp"

// Whatever an error quotes, also one of a mistyped command line, what may be a
// password in it is masked. The user part of a URL ends at its last @, which a
// password that nobody encoded may hold.
var (
	urlPassword   = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s:@/]*):[^\s]*@`)
	namedPassword = regexp.MustCompile(`(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&"'` + "`" + `]+)`)
)

const mask = "xxxxx"

func maskSecrets(text string) string {
	text = urlPassword.ReplaceAllString(text, "${1}:"+mask+"@")
	return namedPassword.ReplaceAllString(text, "${1}"+mask)
}
