package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// The application decides who a request's user is, and what they may do.
func Example() {
	db, closeDB := testenv.ExampleDB()
	defer closeDB()
	if err := models.Migrate(context.Background(), db, models.Naming{}, "orders"); err != nil {
		panic(err)
	}
	o, err := ops.New(db) // an application with an inbox calls Inbox.Ops
	if err != nil {
		panic(err)
	}
	d, err := dashboard.New(o, func(o *dashboard.Options) {
		o.Authorizer = func(r *http.Request) (dashboard.Principal, error) {
			user, _, known := r.BasicAuth() // look the user up in your session instead
			if !known {
				return dashboard.Principal{}, errors.New("not logged in")
			}
			return dashboard.Principal{Actor: user, Role: dashboard.Viewer}, nil
		}
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/inbox/", http.StripPrefix("/inbox", d))

	get := func(user string) int {
		r := httptest.NewRequest(http.MethodGet, "/inbox/", nil)
		if user != "" {
			r.SetBasicAuth(user, "")
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Code
	}
	fmt.Println(get(""), get("alice@example.org"))
	// Output: 401 200
}
