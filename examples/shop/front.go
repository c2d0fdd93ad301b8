package main

import (
	_ "embed"
	"html/template"
	"net/http"

	"github.com/gorm-inbox/inbox/dashboard"

	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

//go:embed front.html
var frontHTML string

var frontPage = template.Must(template.New("front").Parse(frontHTML))

// front is the front page, with the switch that fixes and breaks the mailer.
type front struct {
	mailer   *shipping.Mailer
	accounts Accounts
}

func (f front) mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", f.show)
	// Browsers send the account's password with forms of other sites, too.
	mux.Handle("POST /mailer", http.NewCrossOriginProtection().Handler(f.accounts.Ask(http.HandlerFunc(f.switchMailer))))
}

func (f front) show(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	_ = frontPage.Execute(w, map[string]any{ // the client may be gone
		"Contexts": []string{orders.Name,
			shipping.Name}, "Working": f.mailer.Working(), "Sent": f.mailer.Sent(), "Broken": shipping.BrokenDomain,
		"Operator": operator,
	})
}

// switchMailer fixes or breaks the mailer.
func (f front) switchMailer(w http.ResponseWriter, r *http.Request) {
	who, err := f.accounts.Principal(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if who.Role < dashboard.Operator {
		http.Error(w, "this takes an operator", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<10)
	switch state := r.PostFormValue("state"); state {
	case "working", "broken":
		f.mailer.SetWorking(state == "working")
		http.Redirect(w, r, "/", http.StatusSeeOther)
	default:
		http.Error(w, "state must be working or broken", http.StatusBadRequest)
	}
}
