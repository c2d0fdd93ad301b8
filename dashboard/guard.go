package dashboard

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// policy lets a page load its own script, style and icon, and send forms and requests to its own origin. It blocks
// everything else: inline code, frames, and strings turned into markup.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// harden sets the headers that every response carries, errors included.
func harden(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY") // for browsers without frame-ancestors
	// Don't use no-referrer: with it, browsers send forms with "Origin: null".
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Robots-Tag", "noindex, nofollow")
}

// guard distinguishes the dashboard's forms from forms of other sites.
type guard struct {
	secret  []byte
	origins []string
}

// sameOrigin reports whether a page of the dashboard's origin sent the request. Browsers send at least one of the two
// headers with every form, so a request without either is refused.
func (g guard) sameOrigin(r *http.Request) bool {
	origins := r.Header.Values("Origin")
	site := r.Header.Values("Sec-Fetch-Site")
	if len(origins)+len(site) == 0 || len(origins) > 1 || len(site) > 1 {
		return false
	}
	named := len(origins) == 1 && slices.Contains(g.origins, origins[0])
	if len(site) == 1 && site[0] != "same-origin" && !named {
		return false
	}
	if len(origins) == 0 || named {
		return true
	}
	// The scheme is not compared, because it is unknown behind a proxy that ends TLS. A plain-text page of the same
	// host could attack the session cookie anyway.
	u, err := url.Parse(origins[0])
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http") && strings.EqualFold(u.Host, r.Host)
}

// embedded reports whether the browser prefetches, or a page of another site loads this address as a resource such as
// an image, or goes to it without a person's click, where that is needed. Serving it would audit reads that no person
// made. Links from other sites to pages are fine.
func embedded(r *http.Request, needsClick bool) bool {
	if strings.Contains(r.Header.Get("Sec-Purpose"), "prefetch") { // requested again on use
		return true
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document" ||
			r.Header.Get("Sec-Fetch-User") != "?1" && needsClick
	}
	return false
}

// foreign reports whether another site, or the browser by itself, sent the request, and not its person.
func (g guard) foreign(r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return embedded(r, true)
	}
	fromBrowser := len(r.Header.Values("Origin"))+len(r.Header.Values("Sec-Fetch-Site")) > 0
	return fromBrowser && !g.sameOrigin(r)
}

const (
	visitCookie = "inbox_dashboard"
	tokenField  = "token"
	nonceSize   = 18
)

// visit returns the nonce that identifies the browser, from its cookie or newly made.
//
// The cookie has no Path: browsers then use the directory of the page, which is the prefix, even if a proxy rewrites
// it. It is SameSite=Lax, so forms of other sites do not carry it. Strict would not be safer here. It would also
// replace the cookie, and so invalidate the forms of other tabs, whenever someone follows a link to a page.
func (g guard) visit(w http.ResponseWriter, r *http.Request) (nonce string) {
	if nonce, ok := sentVisit(r); ok {
		return nonce
	}
	raw := make([]byte, nonceSize)
	_, _ = rand.Read(raw) // never fails, see its doc
	nonce = base64.RawURLEncoding.EncodeToString(raw)
	http.SetCookie(w, &http.Cookie{
		Name: visitCookie, Value: nonce, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	})
	return nonce
}

func sentVisit(r *http.Request) (nonce string, ok bool) {
	cookie, err := r.Cookie(visitCookie)
	if err != nil {
		return "", false
	}
	raw, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	return cookie.Value, err == nil && len(raw) == nonceSize
}

// token returns the token that forms carry for one principal in one browser.
func (g guard) token(nonce string, p Principal) string {
	mac := hmac.New(sha256.New, g.secret)
	mac.Write([]byte("form\x00" + nonce + "\x00" + p.Actor))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// ownForm reports whether the form was made for this principal in this browser.
func (g guard) ownForm(r *http.Request, p Principal) bool {
	nonce, ok := sentVisit(r)
	sent := r.PostForm[tokenField]
	return ok && len(sent) == 1 && hmac.Equal([]byte(sent[0]), []byte(g.token(nonce, p)))
}

// anybody is the authorizer of Insecure. It refuses foreign Host headers because of DNS rebinding: another site's name
// can resolve to this machine, and its pages then have the dashboard's origin. Only the Host header reveals it.
func (o Options) anybody(r *http.Request) (Principal, error) {
	named := slices.ContainsFunc(o.Origins, func(origin string) bool {
		u, err := url.Parse(origin)
		return err == nil && strings.EqualFold(u.Host, r.Host)
	})
	if !named && !isLoopback(r.Host) {
		return Principal{}, errors.New("the Host header names another machine, which Insecure does not allow")
	}
	return Principal{Actor: "anonymous", Role: Admin}, nil
}

func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil { // no port
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}

// Role is what a user may do. Each role includes the ones before it. The zero Role may do nothing.
type Role int

// The roles, from least to most rights.
const (
	// Viewer sees everything but payloads, values of headers and attributes, keys, and the audit.
	Viewer Role = iota + 1
	// Operator sees those too (payloads with ShowPayloads), and may retry, discard, accept rejected messages again,
	// pause and resume, resume halted partitions and skip their records.
	Operator
	// Admin may also delete, replay, backfill, read a topic again, and run the cleanup.
	Admin
)

func (r Role) String() string {
	names := map[Role]string{Viewer: "viewer", Operator: "operator", Admin: "admin"}
	return cmp.Or(names[r], fmt.Sprintf("Role(%d)", int(r)))
}

// Principal is the user who sent a request.
type Principal struct {
	// Actor is written to the audit: a user's name or address, 1 to 200 characters without control characters. It must
	// not be a name that users choose freely.
	Actor string
	Role  Role
}

const maxActor = 200

// known reports whether the principal has a role and a valid actor.
func (p Principal) known() bool {
	return p.Role >= Viewer && p.Role <= Admin && p.Actor != "" && utf8.ValidString(p.Actor) &&
		utf8.RuneCountInString(p.Actor) <= maxActor && !strings.ContainsFunc(p.Actor, unicode.IsControl)
}
