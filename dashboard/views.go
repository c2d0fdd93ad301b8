package dashboard

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/ops"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed assets
var assetFiles embed.FS

// views has one template per page, each with the layout and its parts.
type views map[string]*template.Template

func parseViews() (views, error) {
	pages, err := fs.Glob(templateFiles, "templates/page-*.html")
	if err != nil {
		return nil, err
	}
	all := views{}
	for _, page := range pages {
		t, err := template.New("").Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html",
			page)
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(strings.TrimPrefix(page, "templates/page-"), ".html")] = t
	}
	return all, nil
}

// view is the data that a template renders. Body is specific to the page.
type view struct {
	Title   string
	Section string // the section of the navigation
	Who     Principal
	Token   string
	Nav     navCounts
	Notice  *notice
	// Source says where the page reads, if that is worth a note.
	Source ops.Source
	// Up leads from the requested address to the prefix. All pages are one level below it, but an address that is no
	// page may be deeper.
	Up string
	// Here is this page's address, for forms to return to. Live is the address of the part that is updated, or empty.
	Here, Live string
	Refresh    int64 // milliseconds
	Now        time.Time
	Body       any

	q *request
}

// May reports whether the principal may use a route. Templates offer only such routes. Lacks returns why a route that
// the role allows cannot be served here.
func (v *view) May(method, path string) bool     { return v.q.may(method, path) }
func (v *view) Lacks(method, path string) string { return v.q.lacks(method, path) }

// partParameter and partLive form the query parameter that requests a page's live part. The address is the page's, so
// the page's row of the route table covers it.
const partParameter, partLive = "part", "live"

// render answers with a page, or with its live part if the request asks for that.
func (q *request) render(name, title, section string, body any) error {
	v := q.view(title, section, body)
	block := "layout"
	if q.query.Get(partParameter) == partLive {
		block = "update"
	}
	if j, ok := body.(jobView); ok && !j.Ended {
		v.Refresh = min(v.Refresh, time.Second.Milliseconds()) // an operator waits for the result
	}
	v.Nav = q.d.navCounts(q.r.Context())
	if t := q.d.views[name]; t.Lookup("live") != nil {
		query := q.ownQuery()
		query.Set(partParameter, partLive)
		v.Live = "./" + q.route.path + "?" + query.Encode()
	} else if block == "update" {
		return badInput("This page has no live part.")
	}
	return q.send(q.r.Context(), http.StatusOK, name, block, v)
}

func (q *request) view(title, section string, body any) *view {
	v := &view{Up: up(q.r.URL), Title: title, Section: section, Who: q.who, Token: q.token, Now: q.now(), Body: body,
		Source: q.source, Refresh: q.d.opts.Refresh.Milliseconds(), q: q}
	if q.route != nil {
		v.Notice = noticeIn(q.query)
		v.Here = q.route.path
		if query := q.ownQuery().Encode(); query != "" {
			v.Here += "?" + query
		}
	}
	return v
}

// up returns the relative address of the prefix.
func up(from *url.URL) string {
	if deeper := strings.Count(from.EscapedPath(), "/") - 1; deeper > 0 {
		return strings.Repeat("../", deeper)
	}
	return "./"
}

// Beside leads to the other dashboards of Several.
func (v *view) Beside() string { return strings.TrimPrefix(v.Up, "./") + "../" }

// ownQuery returns the page's parameters without the result of the last action.
func (q *request) ownQuery() url.Values {
	own := maps.Clone(q.query)
	own.Del(partParameter)
	for _, name := range noticeFields {
		own.Del(name)
	}
	return own
}

func (q *request) renderProblem(p *problem, reference string) {
	if p.bare {
		q.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		q.w.WriteHeader(p.status)
		_, _ = io.WriteString(q.w, p.title+". "+p.text+"\n") // fails only if the client is gone
		return
	}
	body := struct{ Title, Text, Reference string }{p.title, p.text, reference}
	// The page is small, and the request's context may have ended already.
	if err := q.send(context.WithoutCancel(q.r.Context()), p.status, "problem", "layout",
		q.view(p.title, "", body)); err != nil {
		http.Error(q.w, p.title, p.status)
	}
}

// page is the buffer that a template writes to. Writes fail once its context has ended.
type page struct {
	bytes.Buffer
	ctx context.Context
}

func (p *page) Write(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	return p.Buffer.Write(b)
}

func (q *request) send(ctx context.Context, status int, name, block string, v *view) error {
	out := &page{ctx: ctx}
	if err := q.d.views[name].ExecuteTemplate(out, block, v); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	h := q.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(out.Len()))
	q.w.WriteHeader(status)
	if q.r.Method != http.MethodHead {
		_, _ = out.WriteTo(q.w) // fails only if the client is gone
	}
	return nil
}

// asset serves a static file.
func (q *request) asset() error {
	content, err := assetFiles.ReadFile("assets/" + q.route.path)
	if err != nil {
		return err
	}
	types := map[string]string{"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
		"svg": "image/svg+xml"}
	h := q.w.Header()
	h.Set("Content-Type", types[q.route.path[strings.LastIndex(q.route.path, ".")+1:]])
	h.Set("Content-Length", strconv.Itoa(len(content)))
	if q.r.Method != http.MethodHead {
		_, _ = q.w.Write(content) // fails only if the client is gone
	}
	return nil
}

var functions = template.FuncMap{
	"visible":         visible,
	"preview":         previewOf,
	"content":         contentOf,
	"shownHeaders":    shownHeaders,
	"shownAttributes": shownAttributes,
	"notShown":        notShown,
	"deletable":       deletable,
	"states":          ops.States,
	"hasState":        slices.Contains[[]ops.State],
	"typable":         typable,
	"short":           short,
	"data":            dataClass,
	"number":          anyNumber,
	"count":           countText,
	"age":             age,
	"took":            took,
	"rate":            func(perMinute float64) string { return fmt.Sprintf("%.1f", perMinute) },
	"dict":            dict,
	"line":            func(s string) string { return short(strings.Join(strings.Fields(s), " "), 160) },
	"query":           query,
}

// maxWhole is how long a text may be to stay in one piece in a table at 1280 pixels.
const maxWhole = 30

// dataClass returns the classes of a stored text. Short ones are not broken within a word; long ones are, because the
// other columns would be out of sight.
func dataClass(text string) string {
	if utf8.RuneCountInString(text) <= maxWhole {
		return "data whole"
	}
	return "data"
}

// Param returns a parameter of the page's address.
func (v *view) Param(name string) string { return v.q.query.Get(name) }

// Values reports whether record keys and the values of headers and attributes are shown, Payloads whether payloads are.
func (v *view) Values() bool   { return v.q.seesValues() }
func (v *view) Payloads() bool { return v.q.seesPayloads() }

// query encodes names and values as the query of an address.
func query(pairs ...any) (template.URL, error) {
	if len(pairs)%2 != 0 {
		return "", fmt.Errorf("query: %d arguments", len(pairs))
	}
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			values.Add(fmt.Sprint(pairs[i]), value)
		}
	}
	return template.URL(values.Encode()), nil // safe: Encode escapes it
}

func dict(pairs ...any) (map[string]any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict: %d arguments", len(pairs))
	}
	all := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		all[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return all, nil
}
