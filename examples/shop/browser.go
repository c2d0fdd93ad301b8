package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"time"
)

// Browser visits the site as one does that keeps cookies and signs in by basic authentication; it follows no
// redirect.
type Browser struct {
	site              string
	account, password string // empty: does not sign in
	client            *http.Client
}

// NewBrowser makes one. It sends through transport, which is the caller's to close.
func NewBrowser(site string, transport http.RoundTripper, account, password string) *Browser {
	jar, _ := cookiejar.New(nil) // never fails
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Browser{site, account, password, &http.Client{Jar: jar, Transport: transport, CheckRedirect: refuse,
		Timeout: 20 * time.Second}}
}

// Page returns a page, of a path without its first slash, that must be there and contain all of these.
func (b *Browser) Page(ctx context.Context, path string, contains ...string) (page string, err error) {
	page, _, err = b.Ask(ctx, http.StatusOK, path, nil)
	for _, each := range contains {
		if err == nil && !strings.Contains(page, each) {
			err = fmt.Errorf("/%s does not contain %q", path, each)
		}
	}
	return page, err
}

// Ask asks for a page or, if there is a form, posts it as a page of this origin does. The answer must have that
// status.
func (b *Browser) Ask(ctx context.Context, status int, path string, form url.Values) (string, http.Header, error) {
	return b.askFrom(ctx, strings.TrimSuffix(b.site, "/"), status, path, form)
}

// PostFromElsewhere posts a form as a page of another origin does. That must be refused.
func (b *Browser) PostFromElsewhere(ctx context.Context, path string, form url.Values) error {
	_, _, err := b.askFrom(ctx, "https://elsewhere.example", http.StatusForbidden, path, form)
	if err != nil {
		return fmt.Errorf("a form of another site: %w", err)
	}
	return nil
}

func (b *Browser) askFrom(
	ctx context.Context, origin string, status int, path string, form url.Values,
) (body string, header http.Header, err error) {
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(ctx, method, b.site+path, strings.NewReader(form.Encode()))
	if err != nil {
		return "", nil, err
	}
	if form != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Origin", origin)
	}
	if b.account != "" {
		request.SetBasicAuth(b.account, b.password)
	}
	response, err := b.client.Do(request)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = response.Body.Close() }() // it was read
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != status {
		err = fmt.Errorf("/%s is answered with %d instead of %d", path, response.StatusCode, status)
	}
	return string(content), response.Header, err
}
