package shipping

import (
	"errors"
	"strings"
	"sync/atomic"
)

// BrokenDomain is where mail does not arrive until the mailer is fixed.
const BrokenDomain = "pigeon.example"

// errUnreachable contains no address, because viewers can read errors.
var errUnreachable = errors.New("the mail server of " + BrokenDomain + " does not respond")

// Mailer stands for mail servers, one of which is broken at first. It is safe for concurrent use.
type Mailer struct {
	working atomic.Bool
	sent    atomic.Int64
}

// NewMailer makes a mailer; Fx calls it.
func NewMailer() *Mailer { return &Mailer{} }

// Working reports whether all servers respond.
func (m *Mailer) Working() bool { return m.working.Load() }

// SetWorking fixes the broken server, or breaks it again.
func (m *Mailer) SetWorking(working bool) { m.working.Store(working) }

// Sent is how many mails have been sent.
func (m *Mailer) Sent() int64 { return m.sent.Load() }

// Send sends a mail.
func (m *Mailer) Send(address string) error {
	if !m.Working() && strings.HasSuffix(address, "@"+BrokenDomain) {
		return errUnreachable
	}
	m.sent.Add(1)
	return nil
}
