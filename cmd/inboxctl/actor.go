package main

import (
	"os"
	"os/user"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/ops"
)

// who is the actor of an action.
func (a *app) who() ops.Actor { return ops.Actor(a.actor) }

// checkActor comes before whatever is audited, and before anybody is asked to
// confirm it.
func (a *app) checkActor() error {
	if strings.TrimSpace(a.actor) == "" {
		return misuse("there is no actor: this is audited, so say who you are by --actor or %s", actorVariable)
	}
	if n := utf8.RuneCountInString(a.actor); n > maxActor {
		return misuse("the actor has %d characters, allowed are 1 to %d", n, maxActor)
	}
	return nil
}

// maxActor is what the audit keeps of a name.
const maxActor = 200

// defaultActor is the operating system's user at the machine's name.
func defaultActor(getenv func(string) string) string {
	name := ""
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	if name == "" {
		name = getenv("USER")
	}
	if name == "" {
		return "" // a machine alone is not who
	}
	if host, err := os.Hostname(); err == nil && host != "" {
		name += "@" + host
	}
	return name
}
