package dashboard_test

import (
	"errors"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/ops"
)

// TestSeveralDashboardsShareASwitchAndKeepTheirAuthorizers proves contract 11.4.
func TestSeveralDashboardsShareASwitchAndKeepTheirAuthorizers(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.poison("mail", "no", "m1")
		knows := func(users string) func(*http.Request) (dashboard.Principal, error) {
			return func(request *http.Request) (dashboard.Principal, error) {
				user := request.Header.Get("X-User")
				switch {
				case user == "":
					return dashboard.Principal{}, errors.New("unknown")
				case !strings.Contains(users, user):
					return dashboard.Principal{Actor: user}, nil
				}
				return dashboard.Principal{Actor: user, Role: dashboard.Admin}, nil
			}
		}
		made := map[string]*dashboard.Dashboard{}
		for name, users := range map[string]string{"orders": "ada grace", "billing": "grace"} {
			o, err := ops.New(d.DB)
			require.NoError(t, err)
			made[name], err = dashboard.New(o, func(o *dashboard.Options) { o.Authorizer, o.Clock = knows(users), r.clock })
			require.NoError(t, err)
		}
		both, err := dashboard.Several(made)
		require.NoError(t, err)
		mux := http.NewServeMux()
		mux.Handle("/x/inbox/", http.StripPrefix("/x/inbox", both))
		mux.Handle("/x/inbox", http.StripPrefix("/x/inbox", both))
		server := httptest.NewServer(mux)
		defer server.Close()
		r.agent = server.Client()
		r.agent.Jar, err = cookiejar.New(nil)
		require.NoError(t, err)
		r.agent.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		asking := func(user, method, path string) answer {
			request, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/x/inbox"+path, nil)
			require.NoError(t, err)
			request.Header.Set("X-User", user)
			return r.do(request)
		}
		as := func(user, path string) answer { return asking(user, "GET", path) }

		first := as("", "/orders/")
		require.Equal(t, http.StatusUnauthorized, first.Status)
		for _, path := range []string{"", "/", "/billing/", "/billing/messages", "/nowhere/", "/nowhere", "/orders/nowhere"} {
			got := as("", path)
			require.Equal(t, http.StatusUnauthorized, got.Status, path)
			require.NotContains(t, got.Body, "billing")
			require.NotContains(t, got.Body, "orders")
		}
		for path, to := range map[string]string{"": "./inbox/billing/", "/": "./billing/", "/orders": "./orders/"} {
			got := as("grace", path)
			require.Equal(t, http.StatusSeeOther, got.Status, path)
			require.Equal(t, to, got.Header.Get("Location"), path)
		}
		require.Equal(t, "./orders/", as("ada", "/").Header.Get("Location"), "the first that knows her")
		require.Equal(t, http.StatusNotFound, as("ada", "/nowhere/").Status)
		for _, method := range []string{"GET", "POST"} {
			for _, path := range []string{"", "/", "/message?id=m1"} {
				nowhere, billing := asking("ada", method, "/nowhere"+path), asking("ada", method, "/billing"+path)
				nowhere.Header.Del("Date")
				billing.Header.Del("Date")
				require.Equal(t, nowhere, billing, "%s %s: she learns no name", method, path)
				require.Equal(t, http.StatusNotFound, billing.Status)
			}
		}
		inboxtest.Eventually(t, func() bool { return slices.Contains(r.audit(), "ada denied the dashboard") }, "it is audited")
		require.NoError(t, made["billing"].Stop(t.Context()))

		page := as("grace", "/billing/message?id=m1").Body
		require.Contains(t, page, `<a href="../billing/" aria-current="true">billing</a>`)
		require.Contains(t, page, `<a href="../orders/">orders</a>`)
		require.NotContains(t, as("ada", "/orders/").Body, "billing", "she may not see it")
		require.Equal(t, http.StatusOK, as("ada", "/orders/dashboard.css").Status)
	})
}

func TestSeveralNeedsNamesForPaths(t *testing.T) {
	for _, bad := range []map[string]*dashboard.Dashboard{nil, {"a": nil}, {"": {}}, {"a/b": {}}, {"..": {}}, {"ä": {}}} {
		_, err := dashboard.Several(bad)
		require.ErrorContains(t, err, "dashboard: several: ")
	}
}
