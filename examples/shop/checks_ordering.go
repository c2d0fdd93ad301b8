package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// contexts are both, with what their dashboards show of them.
var contexts = []struct {
	name, channel, messageType string
	handlers                   []string
}{
	{orders.Name, orders.PlacedTopic, orders.Placed, []string{orders.ReserveStock, orders.TakePayment, orders.Announce}},
	{shipping.Name, shipping.ConfirmedTopic, orders.Confirmed, []string{shipping.CreateParcel, shipping.NotifyCustomer}},
}

func (v *visit) refusesStrangers(ctx context.Context) error {
	for who, browser := range map[string]*Browser{"anonymous": v.anonymous, "a wrong password": v.stranger} {
		for _, c := range contexts {
			for _, page := range []string{"", "messages", "failures", "audit", "dashboard.css", "nothing"} {
				a, err := browser.Get(ctx, c.name+"/inbox/"+page)
				if err != nil {
					return err
				}
				if err := a.Is(http.StatusUnauthorized); err != nil {
					return fmt.Errorf("%s: %w", who, err)
				}
				if !strings.HasPrefix(a.Header.Get("WWW-Authenticate"), "Basic ") {
					return fmt.Errorf("/%s does not ask for an account", a.Path)
				}
				if slices.ContainsFunc(c.handlers, func(key string) bool { return strings.Contains(a.Body, key) }) {
					return fmt.Errorf("/%s shows %s which handlers there are", a.Path, who)
				}
			}
		}
		a, err := browser.Post(ctx, "mailer", url.Values{"state": {"working"}})
		if err = errors.Join(err, a.Is(http.StatusUnauthorized)); err != nil {
			return fmt.Errorf("%s: %w", who, err)
		}
	}
	return nil
}

// showsPages waits for the first failure, if need be.
func (v *visit) showsPages(ctx context.Context) error { return v.eventually(ctx, v.showsPagesNow) }

func (v *visit) showsPagesNow(ctx context.Context) error {
	for _, c := range contexts {
		for page, contains := range map[string][]string{
			"":          append([]string{"Overview", "Backlog", "<bdi>" + c.name + "</bdi>"}, c.handlers...),
			"messages":  append([]string{c.messageType, `href="./message?`, "order-000"}, c.handlers[0]),
			"failures":  {"Failures"},
			"rejected":  {"Rejected"},
			"handlers":  append([]string{"running", `action="./pause?handler=`}, c.handlers...),
			"workers":   {"alive", c.handlers[0]},
			"gaps":      {"Gaps"},
			"audit":     {"Audit"},
			"messages?": {"in total"},
		} {
			if _, err := v.operator.Page(ctx, c.name+"/inbox/"+page, contains...); err != nil {
				return err
			}
		}
	}
	if _, err := v.operator.Page(ctx, shipping.Name+"/inbox/failures", "the mail server of "+shipping.BrokenDomain,
		shipping.NotifyCustomer); err != nil {
		return err
	}
	_, err := v.operator.Page(ctx, orders.Name+"/inbox/rejected", orders.PlacedTopic)
	return err
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
		a, err := v.viewer.Get(ctx, c.name+"/inbox/audit")
		if err = errors.Join(err, a.Is(http.StatusForbidden)); err != nil {
			return err
		}
		a, err = v.viewer.Post(ctx, c.name+"/inbox/pause", url.Values{"handler": {c.handlers[0]}})
		if err = errors.Join(err, a.Is(http.StatusForbidden)); err != nil {
			return err
		}
	}
	a, err := v.viewer.Post(ctx, "mailer", url.Values{"state": {"working"}})
	return errors.Join(err, a.Is(http.StatusForbidden))
}

func (v *visit) answersProbes(ctx context.Context) error {
	for _, c := range contexts {
		for _, probe := range []string{"live", "ready"} {
			a, err := v.anonymous.Get(ctx, c.name+"/"+probe)
			if err = errors.Join(err, a.Is(http.StatusOK)); err != nil {
				return err
			}
			var health struct {
				Inbox, State string
				Live, Ready  bool
			}
			if err := a.JSON(&health); err != nil {
				return err
			}
			// Degraded it may be: a tenth poisoned is.
			if health.Inbox != c.name || !health.Live || !health.Ready || health.State != "healthy" &&
				health.State != "degraded" {
				return fmt.Errorf("/%s says %s", a.Path, strings.TrimSpace(a.Body))
			}
		}
	}
	return nil
}
