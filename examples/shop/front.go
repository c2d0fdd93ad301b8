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

// front is the front page, and the switch on it that mends and breaks the mailer.
type front struct {
	mailer   *shipping.Mailer
	accounts Accounts
}

func (f front) mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", f.show)
	// Browsers send the account's password with forms of other sites, too.
	mux.Handle("POST /mailer", http.NewCrossOriginProtection().Handler(f.accounts.Ask(http.HandlerFunc(f.turn))))
}

func (f front) show(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	_ = frontPage.Execute(w, map[string]any{ // whoever asked may be gone
		"Contexts": []string{orders.Name,
			shipping.Name}, "Mended": f.mailer.Mended(), "Sent": f.mailer.Sent(), "Broken": shipping.BrokenDomain,
		"Operator": operator,
	})
}

// turn mends or breaks the mailer.
func (f front) turn(w http.ResponseWriter, r *http.Request) {
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
	case "mended", "broken":
		f.mailer.Mend(state == "mended")
		http.Redirect(w, r, "/", http.StatusSeeOther)
	default:
		http.Error(w, "state is mended or broken", http.StatusBadRequest)
	}
}
