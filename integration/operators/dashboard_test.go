package operators

import (
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// browser is a browser without JavaScript in which the operator has opened the application's dashboard. It follows
// links, and sends forms, by the names that the page shows.
type browser struct {
	t      *testing.T
	client *http.Client
	at     *url.URL
	page   *html.Node
}

func newBrowser(t *testing.T, s *shop) *browser {
	t.Helper()
	o, err := s.ib.Ops()
	require.NoError(t, err)
	d, err := dashboard.New(o, func(o *dashboard.Options) {
		o.Authorizer = func(*http.Request) (dashboard.Principal, error) {
			return dashboard.Principal{Actor: operator, Role: dashboard.Admin}, nil
		}
	})
	require.NoError(t, err)
	server := httptest.NewServer(d)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b := &browser{t: t, client: server.Client()}
	b.client.Jar = jar
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), inboxtest.Patience)
		defer cancel()
		require.NoError(t, d.Stop(ctx))
		server.Close()
	})
	b.at, err = url.Parse(server.URL + "/")
	require.NoError(t, err)
	b.reload()
	return b
}

func (b *browser) reload() { b.t.Helper(); b.send(http.MethodGet, b.at, nil) }

// send makes a request as a browser does from the page that it shows, and shows the response.
func (b *browser) send(method string, to *url.URL, fields url.Values) {
	b.t.Helper()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader(fields.Encode())
	}
	request, err := http.NewRequestWithContext(b.t.Context(), method, to.String(), body)
	require.NoError(b.t, err)
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set("Origin", to.Scheme+"://"+to.Host)
	}
	response, err := b.client.Do(request)
	require.NoError(b.t, err)
	defer response.Body.Close()
	b.page, err = html.Parse(response.Body)
	require.NoError(b.t, err)
	b.at = response.Request.URL
	require.Equal(b.t, http.StatusOK, response.StatusCode, "%s %s: %s", method, to, b.text())
}

// text returns the page's text, with single spaces.
func (b *browser) text() string { return textOf(b.page) }

// says requires that the page shows a text.
func (b *browser) says(text string) { b.t.Helper(); require.Contains(b.t, b.text(), text) }

// await reloads the page until it shows a text.
func (b *browser) await(text string) {
	b.t.Helper()
	inboxtest.Eventually(b.t, func() bool { b.reload(); return strings.Contains(b.text(), text) }, "the page shows: "+text)
}

// awaitNot reloads the page until it shows a text no more.
func (b *browser) awaitNot(text string) {
	b.t.Helper()
	inboxtest.Eventually(b.t, func() bool { b.reload(); return !strings.Contains(b.text(), text) }, "the page lacks: "+text)
}

// links returns the links whose name begins with a text, in the order of the page.
func (b *browser) links(name string) []*html.Node { return b.named("a", name) }

// follow follows the first link whose name begins with a text.
func (b *browser) follow(name string) {
	b.t.Helper()
	links := b.links(name)
	require.NotEmpty(b.t, links, "%s has no link %q: %s", b.at, name, b.text())
	b.open(links[0])
}

func (b *browser) open(link *html.Node) {
	b.t.Helper()
	to, err := b.at.Parse(attribute(link, "href"))
	require.NoError(b.t, err)
	b.send(http.MethodGet, to, nil)
}

// linkIn returns the first link of a row whose name begins with a text.
func (b *browser) linkIn(row *html.Node, name string) *html.Node {
	b.t.Helper()
	links := namedIn(row, "a", name)
	require.NotEmpty(b.t, links, "no link %q in: %s", name, textOf(row))
	return links[0]
}

// press presses the first button whose name begins with a text, after filling in the fields of its form by their
// labels.
func (b *browser) press(name string, fill ...string) {
	b.t.Helper()
	buttons := b.named("button", name)
	require.NotEmpty(b.t, buttons, "%s has no button %q: %s", b.at, name, b.text())
	form := buttons[0]
	for form.Data != "form" {
		form = form.Parent
		require.NotNil(b.t, form, "the button %q has no form", name)
	}
	fields := url.Values{}
	for field := range form.Descendants() {
		if field.Data == "input" && (attribute(field, "type") != "checkbox" || has(field, "checked")) {
			fields.Add(attribute(field, "name"), attribute(field, "value"))
		}
	}
	for i := 0; i < len(fill); i += 2 {
		fields.Set(b.field(form, fill[i]), fill[i+1])
	}
	if own := attribute(buttons[0], "name"); own != "" {
		fields.Add(own, attribute(buttons[0], "value"))
	}
	to, err := b.at.Parse(attribute(form, "action"))
	require.NoError(b.t, err)
	if method := strings.ToUpper(attribute(form, "method")); method == http.MethodPost {
		b.send(method, to, fields)
		return
	}
	to.RawQuery = fields.Encode()
	b.send(http.MethodGet, to, nil)
}

// field returns the name of the field that has a label.
func (b *browser) field(form *html.Node, label string) string {
	b.t.Helper()
	for node := range form.Descendants() {
		if node.Data != "label" || !strings.HasPrefix(textOf(node), label) {
			continue
		}
		for field := range node.Descendants() {
			if field.Data == "input" {
				return attribute(field, "name")
			}
		}
	}
	require.Fail(b.t, "no field", "%s has no field %q", b.at, label)
	return ""
}

// row returns the first table row, list item or article that shows a text.
func (b *browser) row(showing string) *html.Node {
	b.t.Helper()
	for node := range b.page.Descendants() {
		if slices.Contains([]string{"tr", "li", "article"}, node.Data) && strings.Contains(textOf(node), showing) {
			return node
		}
	}
	require.Fail(b.t, "no row", "%s has no row with %q: %s", b.at, showing, b.text())
	return nil
}

// named returns the elements of a kind whose text or accessible name begins with a text.
func (b *browser) named(kind, name string) (found []*html.Node) {
	return namedIn(b.page, kind, name)
}

func namedIn(within *html.Node, kind, name string) (found []*html.Node) {
	for node := range within.Descendants() {
		if node.Type == html.ElementNode && node.Data == kind &&
			(strings.HasPrefix(textOf(node), name) || strings.HasPrefix(attribute(node, "aria-label"), name)) {
			found = append(found, node)
		}
	}
	return found
}

// textOf returns the text below a node, with single spaces.
func textOf(within *html.Node) string {
	var text strings.Builder
	for node := range within.Descendants() {
		if node.Type == html.TextNode {
			text.WriteString(node.Data + " ")
		}
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

func attribute(node *html.Node, name string) string {
	for _, a := range node.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func has(node *html.Node, name string) bool {
	return slices.ContainsFunc(node.Attr, func(a html.Attribute) bool { return a.Key == name })
}
