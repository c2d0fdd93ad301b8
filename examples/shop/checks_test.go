package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/demotest"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// open opens a shop for the test.
func open(t *testing.T, args ...string) (*Running, Settings) {
	t.Helper()
	s, _, err := command.Parse(append([]string{"-addr", ":0"}, args...), io.Discard)
	require.NoError(t, err)
	env := demotest.Environment(t, command.Name, "")
	r, err := Open(t.Context(), env, s)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), env, s))
	t.Cleanup(func() { require.NoError(t, r.Stop(context.Background())) })
	return r, s
}

func TestEveryCheckCanFail(t *testing.T) {
	r, s := open(t, "-rate", "20")
	ordering, enough := context.WithTimeout(t.Context(), 3*time.Second)
	defer enough()
	require.NoError(t, r.Order(ordering))
	_, poisoned, err := r.Settle(t.Context())
	require.NoError(t, err)
	require.Greater(t, poisoned, int64(3))
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	run := func(is func(*visit, context.Context) error, how tampering) error {
		honest := how.ask == nil && how.answer == nil
		how.RoundTripper = transport
		v := newVisit(r, s, how)
		v.retried = "status"
		if !honest {
			v.patience = 200 * time.Millisecond
		}
		return is(v, t.Context())
	}
	fails := func(name string, is func(*visit, context.Context) error, says string, how tampering) {
		t.Helper()
		require.ErrorContains(t, run(is, how), says, name)
	}

	strangers := (*visit).refusesStrangers
	require.NoError(t, run(strangers, tampering{}))
	fails("let in", strangers, "answered with 200 instead of 401", status(401, 200))
	fails("shown", strangers, "which handlers there are", replacing("<body>", orders.TakePayment+shipping.CreateParcel))
	fails("not asked", strangers, "does not ask for an account", tampering{answer: func(a *http.Response, body string) string {
		a.Header.Del("WWW-Authenticate")
		return body
	}})

	pages := (*visit).showsPages
	require.NoError(t, run(pages, tampering{}))
	fails("broken", pages, "answered with 500 instead of 200", status(200, 500))
	for _, key := range []string{orders.ReserveStock, orders.TakePayment, orders.Announce, shipping.CreateParcel,
		shipping.NotifyCustomer} {
		fails(key, pages, "does not contain", replacing(key, "another"))
	}
	fails("no failures", pages, "does not contain", replacing(shipping.BrokenDomain, "another"))
	fails("no rejected", pages, "does not contain", replacing(orders.PlacedTopic, "another"))

	viewers := (*visit).limitsViewers
	require.NoError(t, run(viewers, tampering{}))
	fails("allowed", viewers, "answered with 200 instead of 403", status(403, 200))
	fails("offered", viewers, "offered actions", replacing("<table", `<form method="post"`))

	probes := (*visit).answersProbes
	require.NoError(t, run(probes, tampering{}))
	fails("not ready", probes, "answered with 503 instead of 200", status(200, 503))
	fails("of another", probes, "says", replacing(`"inbox":"shipping"`, `"inbox":"orders"`))
	fails("does not live", probes, "says", replacing(`"live":true`, `"live":false`))

	metrics := (*visit).agreesWithMetrics
	require.NoError(t, run(metrics, tampering{}))
	for _, name := range []string{"inbox_messages_accepted_total", "inbox_attempts_processed_total",
		"inbox_backlog_poisoned"} {
		fails(name, metrics, name, replacing(name, "another"))
	}
	fails("one of the inboxes is missing", metrics, "is missing",
		replacing(`inbox_name="shipping"`, `inbox_name="another"`))
	fails("another figure", metrics, "the database has", replacing("} ", "} 1"))

	fixing := (*visit).fixesMailer
	fails("of another site", fixing, "another site: /mailer is answered with 303 instead of 403", fromHere)
	r.Mailer.SetWorking(false)
	fails("not fixed", fixing, "does not contain", tampering{ask: func(q *http.Request) *http.Response {
		if q.Method == http.MethodPost && q.Header.Get("Origin")+"/" == r.Site {
			return &http.Response{StatusCode: http.StatusSeeOther}
		}
		return nil
	}})
	require.NoError(t, run(fixing, tampering{}))
	fails("fixed already", fixing, "does not contain", tampering{})

	retrying := (*visit).retriesOne
	fails("nothing poisoned", retrying, "does not contain", replacing(shipping.BrokenDomain, "another"))
	fails("no retry is offered", retrying, "offers no retry", replacing(`action="./retry"`, `action="./other"`))
	fails("without its token", retrying, "instead of 303", replacing(`name="token"`, `name="other"`))
	fails("of another site", retrying, "another site: /shipping/inbox/retry is answered with 303 instead of 403", fromHere)
	fails("nothing is done", retrying, "is not completed", tampering{ask: func(q *http.Request) *http.Response {
		if q.Method != http.MethodPost || q.Header.Get("Origin")+"/" != r.Site || strings.Contains(bodyOf(q), "made+up") {
			return nil
		}
		return &http.Response{StatusCode: http.StatusSeeOther}
	}})

	audits := (*visit).audits
	require.NoError(t, run(audits, tampering{}), "that of another site's form, which was let in")
	fails("by another", audits, "does not contain", replacing(">operator<", ">another<"))
	fails("another action", audits, "does not contain", replacing(">retry<", ">another<"))
	fails("of another", audits, "does not contain", replacing("status ", "another "))
	fails("none", audits, "0 retries", replacing(`<td class="time wide">`, ""))
	require.NoError(t, run(retrying, tampering{}))
	fails("two", audits, "2 retries", tampering{})
}

func TestSmokeReportsFailedChecks(t *testing.T) {
	r, s := open(t, brief...)
	r.Mailer.SetWorking(true) // so nothing is poisoned, and there is nothing to retry
	s.patience = 3 * time.Second
	var out bytes.Buffer
	failed, err := smoke(t.Context(), s, r, &out)
	require.NoError(t, err)
	require.Equal(t, failed, strings.Count(out.String(), "FAILED "), "%s", &out)
	for _, what := range []string{"dashboards show what their inboxes hold", "nothing is left to do",
		"the mailer is fixed", "a poisoned message is retried", "the audit names"} {
		require.Contains(t, out.String(), "FAILED "+what)
	}
	for _, what := range []string{"dashboards refuse", "a viewer sees", "probes answer"} {
		require.Contains(t, out.String(), "ok     "+what)
	}
}
