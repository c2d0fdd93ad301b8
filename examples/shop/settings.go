package main

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
)

// Settings are the flags.
type Settings struct {
	Address  string
	Rate     int
	Accounts Accounts
	Smoke    bool
	For      time.Duration
	Kills    int

	patience time.Duration // of the checks
}

func declare(flags *demo.Flags, s *Settings) {
	flags.StringVar(&s.Address, "addr", ":8080", "`address` to serve at, of this machine's loopback")
	flags.IntWithin(&s.Rate, "rate", 4, 1, 100, "orders per second")
	flags.StringVar(&s.Accounts.OperatorPassword, "operator-password", "",
		"`password` of the account operator; random by default")
	flags.StringVar(&s.Accounts.ViewerPassword, "viewer-password", "",
		"`password` of the account viewer; random by default")
	flags.BoolVar(&s.Smoke, "smoke", false, "use the shop like an operator, check what is seen, and end")
	flags.DurationVar(&s.For, "for", 10*time.Second, "`how long` customers order with -smoke")
	flags.IntWithin(&s.Kills, "crash", 0, 0, demo.MaxKills, "how often to kill a process while customers order")
}

const passwordLength = 16

func check(s *Settings) (err error) {
	s.patience = 2 * time.Minute
	// Too long to guess, and short enough to type.
	s.Accounts.OperatorPassword = cmp.Or(s.Accounts.OperatorPassword, rand.Text()[:passwordLength])
	s.Accounts.ViewerPassword = cmp.Or(s.Accounts.ViewerPassword, rand.Text()[:passwordLength])
	if s.Smoke {
		s.Address = ":0"
	}
	s.Address, err = onLoopback(s.Address)
	if s.Smoke && s.Kills > 0 {
		err = errors.Join(err, errors.New("-smoke and -crash: choose one"))
	}
	if s.For < time.Second || s.For > time.Hour {
		err = errors.Join(err, fmt.Errorf("-for = %s: must be 1s to 1h", s.For))
	}
	return err
}

// onLoopback completes an address. Passwords are sent as plain text, so other machines must not reach it.
func onLoopback(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("-addr = %q: must be a port such as :8080, or 127.0.0.1:8080", address)
	}
	host = cmp.Or(host, "127.0.0.1")
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return "", fmt.Errorf("-addr = %q: must be this machine's loopback, such as :8080 or [::1]:8080", address)
	}
	return net.JoinHostPort(host, port), nil
}
