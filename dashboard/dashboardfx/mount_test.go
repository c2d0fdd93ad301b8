package dashboardfx_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/dashboard/dashboardfx"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sessions are the application's.
type sessions struct{ role dashboard.Role }

func (s *sessions) principal(*http.Request) (dashboard.Principal, error) {
	return dashboard.Principal{Actor: "ann", Role: s.role}, nil
}

func authorized(o *dashboard.Options, s *sessions) { o.Authorizer = s.principal }

// application has the inbox "orders" on a database, and what a dashboard needs.
func application(db *gorm.DB, name string) fx.Option {
	tags := fx.ResultTags("")
	if name != "" {
		tags = fx.ResultTags(`name:"` + name + `"`)
	}
	return fx.Options(fx.NopLogger, fx.Supply(fx.Annotate(db, tags), &sessions{dashboard.Viewer}),
		fx.Provide(http.NewServeMux),
		inbox.Module(name, inboxtest.Brisk(), inboxtest.Handlers(inboxtest.Do(name+".h", inboxtest.Nothing))))
}

func get(mux *http.ServeMux, path string) (status int, body string) {
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return w.Code, w.Body.String()
}

func TestOneLineMountsDashboardAndProbes(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		for name, prefix := range map[string]string{"orders": "/orders/inbox", "": ""} {
			var mux *http.ServeMux
			app := fxtest.App(t, application(d.DB, name), dashboardfx.Mount(name, prefix, authorized), fx.Populate(&mux))
			for path, want := range map[string]string{"/": "<title>", "/live": `"live":true`, "/ready": `"ready":true`} {
				status, body := get(mux, prefix+path)
				require.Equal(t, http.StatusOK, status, path)
				require.Contains(t, body, want)
			}
			status, _ := get(mux, prefix+"/audit")
			require.Equal(t, http.StatusForbidden, status, "a viewer does not see the audit")
			app.RequireStop()
			status, _ = get(mux, prefix+"/ready")
			require.Equal(t, http.StatusServiceUnavailable, status)
			inboxtest.Exec(t, d.DB, "DELETE FROM inbox_meta")
		}
	})
}

func TestMountErrorsAreReported(t *testing.T) {
	locked := errors.New("the session store is locked")
	var none func(*dashboard.Options)
	app := application(fxtest.OpenDB(t), "orders")
	const at = `dashboard of inbox "orders": `
	const kind = at + "configure: must be a function of *dashboard.Options"
	for name, tc := range map[string]struct {
		mounts          fx.Option
		validate, start string // one is also the other's if that is empty
	}{
		"prefix with a slash": {dashboardfx.Mount("orders", "/orders/", authorized), at + `prefix "/orders/": must begin with a slash and not end with one`, ""},
		"prefix without one":  {dashboardfx.Mount("orders", "orders", authorized), at + `prefix "orders": must begin`, ""},
		"no function":         {dashboardfx.Mount("orders", "/o", nil), kind, ""},
		"nil function":        {dashboardfx.Mount("orders", "/o", none), kind, ""},
		"another function":    {dashboardfx.Mount("orders", "/o", func(*sessions) {}), kind, ""},
		"another result":      {dashboardfx.Mount("orders", "/o", func(*dashboard.Options) int { return 0 }), kind, ""},
		"no such inbox":       {dashboardfx.Mount("billing", "/o", authorized), `*inbox.Inbox[name="billing"]`, ""},
		"no such value":       {dashboardfx.Mount("orders", "/o", func(*dashboard.Options, *http.Client) {}), "missing type: *http.Client", ""},
		"its error":           {dashboardfx.Mount("orders", "/o", func(*dashboard.Options) error { return locked }), "", at + locked.Error()},
		"no authorizer":       {dashboardfx.Mount("orders", "/o", func(*dashboard.Options) {}), "", at + "dashboard: no Authorizer"},
		"a path that is taken": {fx.Options(fx.Invoke(func(mux *http.ServeMux) { mux.Handle("/o/", http.NotFoundHandler()) }),
			dashboardfx.Mount("orders", "/o", authorized)), "", at + `mount at "/o": pattern "/o/"`},
	} {
		t.Run(name, func(t *testing.T) {
			err := fx.ValidateApp(app, tc.mounts)
			if tc.validate == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.validate)
			}
			if tc.start == "" {
				tc.start = tc.validate
			}
			err = fx.New(app, tc.mounts).Start(context.Background())
			require.ErrorContains(t, err, tc.start)
			if name == "its error" {
				require.ErrorIs(t, err, locked)
			}
		})
	}
}
