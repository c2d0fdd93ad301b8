package dashboard_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// oddIDs are IDs that a browser alters in a form field, or that contain invisible characters.
var oddIDs = []string{
	" a", "a ", "  a  ", "a  b", "\ta", "a\t", "a\nb", "\na", "a\r", "a\r\nb", "\u200ba", "a\u200b", "\ufeffa", "a\u00a0",
	"\u00a0", " ", "a\u2028", "\u202ea", "a\u00ad",
	"a\u2003b", "e\u0301", "a\ufe0f", "+a%20&b=c", "a#b?c", `a\u200b`, `"a"`, "<b>a</b>", "../a", "\u00e4\U0001f4ec",
}

var (
	formOf    = regexp.MustCompile(`(?s)<form method="post" action="([^"]*)"[^>]*>(.*?)</form>`)
	inputOf   = regexp.MustCompile(`<input type="hidden" name="([^"]+)" value="([^"]*)">`)
	shownID   = regexp.MustCompile(`(?s)<strong class="data select-text"><bdi>(.*?)</bdi></strong>`)
	lineEnds  = regexp.MustCompile(`\r\n|\r|\n`)
	whiteness = regexp.MustCompile(`[ \t\n\f\r]+`)
)

// sent returns what a browser sends for the form of a page with this action: the address's
// parameters, and the fields as HTML says that browsers alter them.
func sent(t testing.TB, page, action string) (address, fields url.Values) {
	t.Helper()
	page = lineEnds.ReplaceAllString(page, "\n") // as browsers normalize the page
	for _, form := range formOf.FindAllStringSubmatch(page, -1) {
		to, err := url.Parse(html.UnescapeString(form[1]))
		require.NoError(t, err)
		if "./"+to.Path != action && to.Path != action {
			continue
		}
		fields = url.Values{}
		for _, input := range inputOf.FindAllStringSubmatch(form[2], -1) {
			fields.Add(html.UnescapeString(input[1]), lineEnds.ReplaceAllString(html.UnescapeString(input[2]), "\r\n"))
		}
		return to.Query(), fields
	}
	require.FailNow(t, "no such form", "%s: %s", action, headingOf(page))
	return nil, nil
}

// submit sends the form of a page with additional fields.
func (r *rig) submit(page, action string, more url.Values) answer {
	r.t.Helper()
	address, fields := sent(r.t, page, action)
	for name, values := range more {
		fields[name] = values
	}
	return r.post(strings.TrimPrefix(action, "./")+"?"+address.Encode(), fields)
}

// typedFor returns the ID that a person would type or copy from the page.
func typedFor(t testing.TB, page string) string {
	t.Helper()
	found := shownID.FindStringSubmatch(lineEnds.ReplaceAllString(page, "\n"))
	require.NotNil(t, found, headingOf(page))
	return strings.TrimSpace(whiteness.ReplaceAllString(html.UnescapeString(found[1]), " "))
}

func TestMessagesWithAnyIDCanBeDeletedFromTheirPage(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, append([]string{"a", "ab", "a b", "b"}, oddIDs...)...)
		for _, id := range oddIDs {
			at := url.Values{"id": {id}}.Encode()
			require.Contains(t, html.UnescapeString(r.page("message?"+at)), "./delete?"+at, "%q", id)
			page := r.page("delete?" + at)
			require.Equal(t, http.StatusBadRequest, r.submit(page, "./delete", url.Values{"confirmation": {"b"}}).Status, "%q",
				id)
			got := r.submit(page, "./delete", url.Values{"confirmation": {typedFor(t, page)}})
			require.Equal(t, http.StatusSeeOther, got.Status, "%q: %s", id, headingOf(got.Body))
			require.Equal(t, http.StatusNotFound, r.get("message?"+at).Status, "%q", id)
		}
		var left []string
		require.NoError(t, r.d.DB.Model(&models.Message{}).Order("id").Pluck("id", &left).Error)
		require.ElementsMatch(t, []string{"a", "ab", "a b", "b"}, left, "no other message is taken for it")
	})
}

func TestMessagesWithAnyIDCanBeRetriedAndReplayed(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "smtp said 550", append([]string{"a", "ab", "a b"}, oddIDs...)...)
		r.clock.Advance(time.Second)
		for i, id := range oddIDs {
			at := url.Values{"id": {id}}
			confirm := r.page("bulk?" + url.Values{"action": {"retry"}, "id": {id}, "state": {"poisoned"}}.Encode())
			require.Contains(t, confirm, "Retry 1 poisoned status?", "%q", id)
			got := r.submit(confirm, "./bulk", nil)
			require.Equal(t, http.StatusSeeOther, got.Status, "%q: %s", id, headingOf(got.Body))
			job := strings.TrimPrefix(got.Header.Get("Location"), "./")
			inboxtest.Eventually(t, func() bool { return strings.Contains(r.page(job), "Done.") }, "the end of it")
			require.False(t, inboxtest.Status(t, r.ib, id, "mail").IsPoisoned, "%q", id)

			got = r.submit(r.page("replay?"+at.Encode()), "./replay", url.Values{"new-id": {"copy" + string(rune('A'+i))}})
			require.Contains(t, got.Header.Get("Location"), "notice=replayed", "%q: %s", id, headingOf(got.Body))
		}
		for _, id := range []string{"a", "ab", "a b"} {
			require.True(t, inboxtest.Status(t, r.ib, id, "mail").IsPoisoned, "%q is another message", id)
		}
	})
}

func TestHandlersWithAnyKeyCanBePaused(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "x", "m1")
		const key = "mail\n \u200b"
		require.NoError(t, r.d.DB.Exec("UPDATE inbox_handler_statuses SET handler_key = ? WHERE handler_key = 'mail'",
			key).Error)
		page := r.page("handlers")
		for _, form := range formOf.FindAllString(page, -1) {
			if address, _ := sent(t, form, "./pause"); address.Get("handler") == key {
				require.Equal(t, http.StatusSeeOther, r.submit(form, "./pause", nil).Status)
			}
		}
		paused, err := r.ops.Handlers(t.Context())
		require.NoError(t, err)
		for _, h := range paused {
			require.Equal(t, h.HandlerKey == key, h.Paused, "%q", h.HandlerKey)
		}
	})
}

// TestMessagesWithTheSameIDHaveSeparatePages proves contract 4.4: an ID is unique within its channel.
func TestMessagesWithTheSameIDHaveSeparatePages(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		inboxtest.Accept(t, r.ib, "m1")
		other := inboxtest.New(t, r.d.Another(t), inbox.Channel("partners",
			inbox.On("t", inboxtest.Do("import", inboxtest.Nothing))))
		_, err := other.Accept(t.Context(), handler.RawMessage{Channel: "partners", Type: "t", ID: "m1",
			Content: []byte("another's")})
		require.NoError(t, err)

		list := html.UnescapeString(r.follow(r.get("message?id=m1")))
		for _, namespace := range []string{"c", "partners"} {
			require.Contains(t, list, "./message?id=m1&namespace="+namespace)
		}
		require.Contains(t, r.page("message?id=m1&namespace=partners"), "another&#39;s")
		require.NotContains(t, html.UnescapeString(r.page("messages?id=m1&namespace=partners")),
			"./message?id=m1&namespace=c\"")
		got := r.submit(r.page("delete?id=m1"), "./delete", url.Values{"confirmation": {"m1"}})
		require.Equal(t, http.StatusConflict, got.Status)
		require.Contains(t, got.Body, "Several messages have this ID")
		page := r.page("delete?id=m1&namespace=partners")
		require.Equal(t, http.StatusSeeOther, r.submit(page, "./delete", url.Values{"confirmation": {"m1"}}).Status)
		var left []models.Message
		require.NoError(t, r.d.DB.Find(&left).Error)
		require.Len(t, left, 1)
		require.Equal(t, "c", left[0].Namespace)
	})
}
