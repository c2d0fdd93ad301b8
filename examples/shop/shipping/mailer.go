package shipping

import (
	"errors"
	"strings"
	"sync/atomic"
)

// BrokenDomain is where mail does not arrive until the mailer is mended.
const BrokenDomain = "pigeon.example"

// errNoAnswer has no address in it: errors are shown to viewers.
var errNoAnswer = errors.New("the mail server of " + BrokenDomain + " does not answer")

// Mailer stands for mail servers, one of which is broken at first. It is safe for
// concurrent use.
type Mailer struct {
	mended atomic.Bool
	sent   atomic.Int64
}

// NewMailer makes a mailer; Fx calls it.
func NewMailer() *Mailer { return &Mailer{} }

// Mended reports whether all servers answer.
func (m *Mailer) Mended() bool { return m.mended.Load() }

// Mend has the broken server answer, or break again.
func (m *Mailer) Mend(mended bool) { m.mended.Store(mended) }

// Sent is how many mails have been sent.
func (m *Mailer) Sent() int64 { return m.sent.Load() }

// Send sends a mail.
func (m *Mailer) Send(address string) error {
	if !m.Mended() && strings.HasSuffix(address, "@"+BrokenDomain) {
		return errNoAnswer
	}
	m.sent.Add(1)
	return nil
}
