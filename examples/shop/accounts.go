package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"

	"github.com/gorm-inbox/inbox/dashboard"
)

// Accounts are the passwords of two accounts, for HTTP's basic authentication. A service with sessions would
// use them instead.
type Accounts struct{ OperatorPassword, ViewerPassword string }

// The names of the accounts, which the audit has.
const (
	operator = "operator"
	viewer   = "viewer"
)

var errUnknown = errors.New("no such account, or another password")

// Principal identifies the user: it is the dashboards' authorizer.
func (a Accounts) Principal(r *http.Request) (dashboard.Principal, error) {
	name, password, _ := r.BasicAuth()
	switch {
	case name == operator && same(password, a.OperatorPassword):
		return dashboard.Principal{Actor: operator, Role: dashboard.Operator}, nil
	case name == viewer && same(password, a.ViewerPassword):
		return dashboard.Principal{Actor: viewer, Role: dashboard.Viewer}, nil
	}
	return dashboard.Principal{}, errUnknown
}

// same takes equally long whatever was guessed.
func same(given, wanted string) bool {
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(wanted))
	return wanted != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// Ask has browsers ask for account and password. It refuses no request: the handlers that it wraps do.
func (a Accounts) Ask(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := a.Principal(r); err != nil {
			w.Header().Set("WWW-Authenticate", `Basic realm="shop", charset="UTF-8"`)
		}
		next.ServeHTTP(w, r)
	})
}
