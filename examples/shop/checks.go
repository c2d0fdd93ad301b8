package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gorm-inbox/inbox/examples/internal/demo"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
	"github.com/gorm-inbox/inbox/models"
)

// Check is one thing that must hold.
type Check struct {
	what string
	is   func(v *visit, ctx context.Context) error
}

// whileOrdering are checked while customers order, afterwards when nothing is left to do. Each check relies
// on those before it.
var (
	whileOrdering = []Check{
		{"dashboards refuse who does not sign in", (*visit).refusesStrangers},
		{"dashboards show what their inboxes hold", (*visit).showsPages},
		{"a viewer sees everything and may not act", (*visit).limitsViewers},
		{"probes answer for both inboxes", (*visit).answersProbes},
	}
	afterwards = []Check{
		{"metrics of both inboxes agree with the databases", (*visit).agreesWithMetrics},
		{"the mailer is fixed on the front page", (*visit).fixesMailer},
		{"a poisoned message is retried from the dashboard, and completed", (*visit).retriesOne},
		{"the audit names actor, action and target", (*visit).audits},
	}
)

// contexts are both, with what their dashboards show of them.
var contexts = []struct {
	name, channel, messageType string
	handlers                   []string
}{
	{orders.Name, orders.PlacedTopic, orders.Placed, []string{orders.ReserveStock, orders.TakePayment, orders.Announce}},
	{shipping.Name, shipping.ConfirmedTopic, orders.Confirmed, []string{shipping.CreateParcel, shipping.NotifyCustomer}},
}

// fixMailer is the form that the front page has.
var fixMailer = url.Values{"state": {"working"}}

func (v *visit) refusesStrangers(ctx context.Context) error {
	for who, browser := range map[string]*Browser{"anonymous": v.anonymous, "a wrong password": v.stranger} {
		for _, c := range contexts {
			for _, page := range []string{"", "messages", "failures", "audit", "dashboard.css", "nothing"} {
				path := c.name + "/inbox/" + page
				body, header, err := browser.Ask(ctx, http.StatusUnauthorized, path, nil)
				if err != nil {
					return fmt.Errorf("%s: %w", who, err)
				}
				if !strings.HasPrefix(header.Get("WWW-Authenticate"), "Basic ") {
					return fmt.Errorf("/%s does not ask for an account", path)
				}
				if slices.ContainsFunc(c.handlers, func(key string) bool { return strings.Contains(body, key) }) {
					return fmt.Errorf("/%s shows %s which handlers there are", path, who)
				}
			}
		}
		if _, _, err := browser.Ask(ctx, http.StatusUnauthorized, "mailer", fixMailer); err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
	}
	return nil
}

// showsPages waits for the first failure, if need be.
func (v *visit) showsPages(ctx context.Context) error {
	pages := map[string][]string{
		shipping.Name + "/inbox/failures": {"Failures", "the mail server of " + shipping.BrokenDomain, shipping.NotifyCustomer},
		orders.Name + "/inbox/rejected":   {"Rejected", orders.PlacedTopic},
		shipping.Name + "/inbox/rejected": {"Rejected"},
		orders.Name + "/inbox/failures":   {"Failures"},
	}
	for _, c := range contexts {
		for page, contains := range map[string][]string{
			"":          append([]string{"Overview", "Backlog", "<bdi>" + c.name + "</bdi>"}, c.handlers...),
			"messages":  {c.messageType, `href="./message?`, "order-000", c.handlers[0]},
			"messages?": {"in total"},
			"handlers":  append([]string{"Handlers", `action="./pause?handler=`}, c.handlers...),
			"workers":   {"alive", c.handlers[0]},
			"gaps":      {"Gaps"},
			"audit":     {"Audit"},
		} {
			pages[c.name+"/inbox/"+page] = contains
		}
	}
	return v.eventually(ctx, func(ctx context.Context) error {
		for path, contains := range pages {
			if _, err := v.operator.Page(ctx, path, contains...); err != nil {
				return err
			}
		}
		return nil
	})
}

func (v *visit) limitsViewers(ctx context.Context) error {
	for _, c := range contexts {
		page, err := v.viewer.Page(ctx, c.name+"/inbox/handlers", c.handlers...)
		if err != nil {
			return err
		}
		if strings.Contains(page, "<form method=\"post\"") {
			return fmt.Errorf("a viewer is offered actions by /%s/inbox/handlers", c.name)
		}
		_, _, audit := v.viewer.Ask(ctx, http.StatusForbidden, c.name+"/inbox/audit", nil)
		_, _, pause := v.viewer.Ask(ctx, http.StatusForbidden, c.name+"/inbox/pause", url.Values{"handler": c.handlers[:1]})
		if err := errors.Join(audit, pause); err != nil {
			return err
		}
	}
	_, _, err := v.viewer.Ask(ctx, http.StatusForbidden, "mailer", fixMailer)
	return err
}

func (v *visit) answersProbes(ctx context.Context) error {
	for _, c := range contexts {
		for _, probe := range []string{"live", "ready"} {
			body, err := v.anonymous.Page(ctx, c.name+"/"+probe)
			if err != nil {
				return err
			}
			var health struct {
				Inbox, State string
				Live, Ready  bool
			}
			// Degraded it may be: a tenth poisoned is.
			if err := json.Unmarshal([]byte(body), &health); err != nil || health.Inbox != c.name || !health.Live ||
				!health.Ready || health.State != "healthy" && health.State != "degraded" {
				return fmt.Errorf("/%s/%s says %s", c.name, probe, strings.TrimSpace(body))
			}
		}
	}
	return nil
}

// agreesWithMetrics compares what Prometheus would read with the databases, series by series. Gauges are
// sampled, so they may lag behind.
func (v *visit) agreesWithMetrics(ctx context.Context) error {
	result, err := v.ReadResult(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]int{} // by series
	for i, in := range []demo.Stored{result.Orders, result.Shipping} {
		c := contexts[i]
		of := func(metric, label, value string) string {
			return fmt.Sprintf("%s{%s=%q,inbox_name=%q}", metric, label, value, c.name)
		}
		wanted[fmt.Sprintf("inbox_workers{inbox_name=%q}", c.name)] = 1
		wanted[of("inbox_records_rejected_total", "inbox_channel", c.channel)] = len(in.Rejected)
		accepted := of("inbox_messages_accepted_total", "inbox_channel", c.channel)
		wanted[accepted] = 0
		for _, m := range in.Messages {
			if m.Type == c.messageType {
				wanted[accepted]++
			}
		}
		for _, key := range c.handlers {
			processed, poisoned := 0, 0
			for _, s := range in.Statuses {
				switch {
				case s.HandlerKey != key:
				case s.Processed():
					processed++
				case s.Poisoned:
					poisoned++
				}
			}
			wanted[of("inbox_attempts_processed_total", "inbox_handler_key", key)] = processed
			wanted[of("inbox_statuses_poisoned_total", "inbox_handler_key", key)] = poisoned
			wanted[of("inbox_backlog_poisoned", "inbox_handler_key", key)] = poisoned
			wanted[of("inbox_backlog_due", "inbox_handler_key", key)] = 0
		}
	}
	return v.eventually(ctx, func(ctx context.Context) error {
		page, err := v.anonymous.Page(ctx, "metrics")
		if err != nil {
			return err
		}
		found := map[string]string{} // by series, in Prometheus' text format
		for _, line := range metricLine.FindAllStringSubmatch(page, -1) {
			found[line[1]] = line[2]
		}
		var differ []string
		for _, series := range slices.Sorted(maps.Keys(wanted)) {
			text, ok := found[series]
			if !ok {
				text = "missing"
			}
			if value, err := strconv.ParseFloat(text, 64); err != nil || value != float64(wanted[series]) {
				differ = append(differ, fmt.Sprintf("%s is %s, the database has %d", series, text, wanted[series]))
			}
		}
		if len(differ) > 0 {
			return fmt.Errorf("%d of %d series differ: %s", len(differ), len(wanted), strings.Join(differ, "; "))
		}
		return nil
	})
}

var metricLine = regexp.MustCompile(`(?m)^(\w+\{[^}]*\}) (\S+)$`)

func (v *visit) fixesMailer(ctx context.Context) error {
	if _, err := v.anonymous.Page(ctx, "", "The mailer is broken", "/orders/inbox/", "/shipping/inbox/", "/metrics",
		"/orders/live", "/shipping/ready"); err != nil {
		return err
	}
	if err := v.operator.PostFromElsewhere(ctx, "mailer", fixMailer); err != nil {
		return err
	}
	if _, _, err := v.operator.Ask(ctx, http.StatusSeeOther, "mailer", fixMailer); err != nil {
		return err
	}
	_, err := v.anonymous.Page(ctx, "", "The mailer works")
	return err
}

var (
	poisonedLink = regexp.MustCompile(`href="\./(message\?[^"]+)"`)
	retryForm    = regexp.MustCompile(`(?s)<form method="post" action="\./retry">(.*?)</form>`)
	hiddenInput  = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)
)

// retriesOne does what an operator does: it finds a poisoned message in the list, opens it, and presses Retry.
func (v *visit) retriesOne(ctx context.Context) error {
	const inbox = shipping.Name + "/inbox/"
	list, err := v.operator.Page(ctx, inbox+"messages?state=poisoned&handler="+shipping.NotifyCustomer,
		"the mail server of "+shipping.BrokenDomain)
	if err != nil {
		return err
	}
	link := poisonedLink.FindStringSubmatch(list)
	if link == nil {
		return errors.New("no poisoned message is listed")
	}
	address := html.UnescapeString(link[1])
	page, err := v.operator.Page(ctx, inbox+address, "Poisoned", "&#34;order_id&#34;:&#34;order-")
	if err != nil {
		return err
	}
	found := retryForm.FindStringSubmatch(page)
	if found == nil {
		return fmt.Errorf("/%s offers no retry", inbox+address)
	}
	form := url.Values{}
	for _, field := range hiddenInput.FindAllStringSubmatch(found[1], -1) {
		form.Set(field[1], html.UnescapeString(field[2]))
	}
	id, _, _ := strings.Cut(form.Get("ref"), "@")
	before, err := v.status(ctx, id)
	if err != nil {
		return err
	}

	if err := v.operator.PostFromElsewhere(ctx, inbox+"retry", form); err != nil {
		return err
	}
	forged := url.Values{"ref": form["ref"], "token": {"made up"}}
	if _, _, err := v.operator.Ask(ctx, http.StatusForbidden, inbox+"retry", forged); err != nil {
		return fmt.Errorf("a form without its token: %w", err)
	}
	now, err := v.status(ctx, id)
	if err != nil || !before.IsPoisoned || !now.IsPoisoned || now.Version != before.Version {
		return errors.Join(errors.New("it did not stay poisoned until it was retried"), err)
	}
	mails := v.Mailer.Sent()
	if _, _, err := v.operator.Ask(ctx, http.StatusSeeOther, inbox+"retry", form); err != nil {
		return err
	}
	if err := v.eventually(ctx, func(ctx context.Context) error {
		s, err := v.status(ctx, id)
		if err == nil && (s.Outcome != models.OutcomeProcessed || s.RequeuedCount != 1) {
			err = fmt.Errorf("status %s was retried and is not completed", id)
		}
		return err
	}); err != nil {
		return err
	}
	if sent := v.Mailer.Sent(); sent != mails+1 {
		return fmt.Errorf("it was completed with %d mails", sent-mails)
	}
	v.retried = id
	_, err = v.operator.Page(ctx, inbox+address, "Retried by an operator", "Completed")
	return err
}

func (v *visit) status(ctx context.Context, id string) (s models.HandlerStatus, err error) {
	err = v.Shipping.DB.WithContext(ctx).Take(&s, "id = ?", id).Error
	return s, err
}

var auditRow = regexp.MustCompile(`(?s)<tr><td class="time[^"]*">.*?</tr>`)

// audits asks the audit page for the retry: one row that names all.
func (v *visit) audits(ctx context.Context) error {
	page, err := v.operator.Page(ctx, shipping.Name+"/inbox/audit?action=retry")
	if err != nil {
		return err
	}
	rows := auditRow.FindAllString(page, -1)
	if len(rows) != 1 {
		return fmt.Errorf("the audit has %d retries instead of 1", len(rows))
	}
	if v.retried == "" {
		return errors.New("nothing was retried")
	}
	for _, part := range []string{">" + operator + "<", ">retry<", v.retried} {
		if !strings.Contains(rows[0], part) {
			return fmt.Errorf("the audit's row does not contain %q", part)
		}
	}
	return nil
}
