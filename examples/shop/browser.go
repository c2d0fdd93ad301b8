package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"time"
)

// Browser visits the site as one does that keeps cookies and signs in by basic
// authentication; it follows no redirect.
type Browser struct {
	site              string
	account, password string // empty: does not sign in
	client            *http.Client
}

// NewBrowser makes one. It sends through transport, which is the caller's to
// close.
func NewBrowser(site string, transport http.RoundTripper, account, password string) (*Browser, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Browser{site, account, password, &http.Client{Jar: jar, Transport: transport, CheckRedirect: refuse,
		Timeout: 20 * time.Second}}, nil
}

// Answer is an answer, read.
type Answer struct {
	Path   string
	Status int
	Header http.Header
	Body   string
}

// Get asks for a page, of a path without its first slash.
func (b *Browser) Get(ctx context.Context, path string) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.site+path, nil)
	if err != nil {
		return Answer{}, err
	}
	return b.do(request, path)
}

// Page is a page that must be there and contain all of these.
func (b *Browser) Page(ctx context.Context, path string, contains ...string) (string, error) {
	a, err := b.Get(ctx, path)
	if err != nil {
		return "", err
	}
	if err := a.Is(http.StatusOK); err != nil {
		return "", err
	}
	for _, each := range contains {
		if !strings.Contains(a.Body, each) {
			return "", fmt.Errorf("/%s does not contain %q", path, each)
		}
	}
	return a.Body, nil
}

// Post sends a form as a page of this origin does.
func (b *Browser) Post(ctx context.Context, path string, form url.Values) (Answer, error) {
	return b.PostFrom(ctx, strings.TrimSuffix(b.site, "/"), path, form)
}

// PostFrom sends a form as a page of any origin does.
func (b *Browser) PostFrom(ctx context.Context, origin, path string, form url.Values) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.site+path, strings.NewReader(form.Encode()))
	if err != nil {
		return Answer{}, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Origin", origin)
	return b.do(request, path)
}

func (b *Browser) do(request *http.Request, path string) (Answer, error) {
	if b.account != "" {
		request.SetBasicAuth(b.account, b.password)
	}
	response, err := b.client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = response.Body.Close() }() // it was read
	body, err := io.ReadAll(response.Body)
	return Answer{path, response.StatusCode, response.Header, string(body)}, err
}

// Is is nil if the answer has this status.
func (a Answer) Is(status int) error {
	if a.Status != status {
		return fmt.Errorf("/%s is answered with %d instead of %d", a.Path, a.Status, status)
	}
	return nil
}

// JSON reads the answer.
func (a Answer) JSON(into any) error {
	if err := json.Unmarshal([]byte(a.Body), into); err != nil {
		return fmt.Errorf("/%s: %w", a.Path, err)
	}
	return nil
}
