package dashboard

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Role is what a user may do. Each role includes the ones before it. The zero Role may do nothing.
type Role int

// The roles, from least to most rights.
const (
	// Viewer sees everything but payloads, values of headers and attributes,
	// keys, and the audit.
	Viewer Role = iota + 1
	// Operator sees those too (payloads with ShowPayloads), and may retry,
	// discard, accept rejected messages again, pause and resume.
	Operator
	// Admin may also delete, replay, and run the cleanup.
	Admin
)

func (r Role) String() string {
	switch r {
	case Viewer:
		return "viewer"
	case Operator:
		return "operator"
	case Admin:
		return "admin"
	}
	return fmt.Sprintf("Role(%d)", int(r))
}

// Principal is the user who sent a request.
type Principal struct {
	// Actor is written to the audit: a user's name or address, 1 to 200 characters without control
	// characters. It must not be a name that users choose freely.
	Actor string
	Role  Role
}

const maxActor = 200

// known reports whether the principal has a role and a valid actor.
func (p Principal) known() bool {
	if p.Role < Viewer || p.Role > Admin || p.Actor == "" || !utf8.ValidString(p.Actor) ||
		utf8.RuneCountInString(p.Actor) > maxActor {
		return false
	}
	for _, c := range p.Actor {
		if unicode.IsControl(c) {
			return false
		}
	}
	return true
}
