package main

import (
	"io"
	"net/http"
	"strings"
)

// tampering stands between the checks and the site.
type tampering struct {
	http.RoundTripper
	ask    func(q *http.Request) (answer *http.Response) // nil: goes on to the site
	answer func(a *http.Response, body string) string
}

// RoundTrip implements http.RoundTripper.
func (t tampering) RoundTrip(q *http.Request) (*http.Response, error) {
	if t.ask != nil {
		if a := t.ask(q); a != nil {
			a.Body = http.NoBody
			return a, nil
		}
	}
	a, err := t.RoundTripper.RoundTrip(q)
	if err != nil || t.answer == nil {
		return a, err
	}
	body, err := io.ReadAll(a.Body)
	if err != nil {
		return nil, err
	}
	a.Body = io.NopCloser(strings.NewReader(t.answer(a, string(body))))
	return a, nil
}

// replacing tampers with pages.
func replacing(old, by string) tampering {
	return tampering{answer: func(_ *http.Response, body string) string { return strings.ReplaceAll(body, old, by) }}
}

// status tampers with answers of one status.
func status(is, becomes int) tampering {
	return tampering{answer: func(a *http.Response, body string) string {
		if a.StatusCode == is {
			a.StatusCode = becomes
		}
		return body
	}}
}

// fromHere makes forms of other sites look like the site's own.
var fromHere = tampering{ask: func(q *http.Request) *http.Response {
	q.Header.Del("Origin")
	q.Header.Set("Sec-Fetch-Site", "same-origin")
	return nil
}}

// bodyOf reads a form without taking it away.
func bodyOf(q *http.Request) string {
	body, err := q.GetBody()
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(body)
	return string(text)
}
