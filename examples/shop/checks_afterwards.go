package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/gorm-inbox/inbox/examples/shop/shipping"
	"github.com/gorm-inbox/inbox/models"
)

func (v *visit) fixesMailer(ctx context.Context) error {
	if _, err := v.anonymous.Page(ctx, "", "The mailer is broken", "/orders/inbox/", "/shipping/inbox/", "/metrics",
		"/orders/live", "/shipping/ready"); err != nil {
		return err
	}
	working := url.Values{"state": {"working"}}
	a, err := v.operator.PostFrom(ctx, "https://elsewhere.example", "mailer", working)
	if err = errors.Join(err, a.Is(http.StatusForbidden)); err != nil {
		return fmt.Errorf("a form of another site: %w", err)
	}
	a, err = v.operator.Post(ctx, "mailer", working)
	if err = errors.Join(err, a.Is(http.StatusSeeOther)); err != nil {
		return err
	}
	_, err = v.anonymous.Page(ctx, "", "The mailer works")
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
	id := strings.SplitN(form.Get("ref"), "@", 2)[0]
	before, err := v.status(ctx, id)
	if err != nil {
		return err
	}

	a, err := v.operator.PostFrom(ctx, "https://elsewhere.example", inbox+"retry", form)
	if err = errors.Join(err, a.Is(http.StatusForbidden)); err != nil {
		return fmt.Errorf("a form of another site: %w", err)
	}
	forged := url.Values{"ref": form["ref"], "token": {"made up"}}
	a, err = v.operator.Post(ctx, inbox+"retry", forged)
	if err = errors.Join(err, a.Is(http.StatusForbidden)); err != nil {
		return fmt.Errorf("a form without its token: %w", err)
	}
	if now, err := v.status(ctx, id); err != nil || !before.IsPoisoned || !now.IsPoisoned ||
		now.Version != before.Version {
		return errors.Join(errors.New("it did not stay poisoned until it was retried"), err)
	}
	mails := v.Mailer.Sent()
	a, err = v.operator.Post(ctx, inbox+"retry", form)
	if err = errors.Join(err, a.Is(http.StatusSeeOther)); err != nil {
		return err
	}
	err = v.eventually(ctx, func(ctx context.Context) error {
		s, err := v.status(ctx, id)
		if err == nil && (s.Outcome != models.OutcomeProcessed || s.RequeuedCount != 1) {
			err = fmt.Errorf("status %s was retried and is not completed", id)
		}
		return err
	})
	if err != nil {
		return err
	}
	if sent := v.Mailer.Sent(); sent != mails+1 {
		return fmt.Errorf("it was completed with %d mails", sent-mails)
	}
	v.retried = id
	_, err = v.operator.Page(ctx, inbox+address, "Retried by an operator once", "Completed")
	return err
}

func (v *visit) status(ctx context.Context, id string) (s models.HandlerStatus, err error) {
	err = v.Shipping.DB.WithContext(ctx).Take(&s, "id = ?", id).Error
	return s, err
}

var auditRow = regexp.MustCompile(`(?s)<tr><td class="time">.*?</tr>`)

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
