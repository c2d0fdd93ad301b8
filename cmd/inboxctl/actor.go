package main

import (
	"os"
	"os/user"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/ops"
)

// who returns the actor of an action.
func (a *app) who() ops.Actor { return ops.Actor(a.actor) }

// checkActor validates the actor. It runs before anything is audited and before the operator is
// asked to confirm.
func (a *app) checkActor() error {
	if strings.TrimSpace(a.actor) == "" {
		return misuse("no actor: this is audited, so give your name with --actor or %s", actorVariable)
	}
	if n := utf8.RuneCountInString(a.actor); n > maxActor {
		return misuse("the actor has %d characters: must be 1 to %d", n, maxActor)
	}
	return nil
}

// maxActor is the longest name that the audit stores.
const maxActor = 200

// defaultActor returns the operating system's user at the machine's name.
func defaultActor(getenv func(string) string) string {
	name := ""
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	if name == "" {
		name = getenv("USER")
	}
	if name == "" {
		return "" // a machine's name alone does not identify a person
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		name += "@" + host
	}
	return name
}
