package dashboard_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryPageRendersEmptyAndFilled(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		pages := []string{"", "messages", "messages?state=poisoned&handler=mail&limit=100", "failures", "rejected", "handlers", "workers", "gaps", "audit", "cleanup"}
		for _, page := range pages {
			require.Contains(t, r.page(page), "</html>", page)
		}
		r.poison("mail", "smtp said 550", "m1", "m2")
		rejected := r.reject(7, "no ce_id")
		pages = append(pages, "message?id=m1", "replay?id=m1", "delete?id=m1", "rejected-message?id="+rejected, "delete-rejected?id="+rejected,
			"bulk?action=retry&handler=mail", "bulk?action=discard&handler=mail")
		for _, page := range pages {
			require.Contains(t, r.page(page), "</html>", page)
			require.NotContains(t, r.page(page), "no value", page)
		}
		for _, page := range []string{"", "messages", "failures", "rejected", "handlers", "workers", "gaps", "audit"} {
			part := r.page(page + "?part=live")
			require.True(t, strings.HasPrefix(part, "<nav"), part)
			require.NotContains(t, part, "<html", page)
		}
		require.Equal(t, 400, r.get("message?id=m1&part=live").Status)
	})
}

func TestMessagesAreFilteredAndPaged(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		var ids []string
		for i := range 60 {
			ids = append(ids, "m"+strings.Repeat("x", i))
		}
		r.poison("mail", "smtp said 550", ids...)
		page := r.page("messages?" + url.Values{"state": {"poisoned"}, "handler": {"mail"}, "type": {""}}.Encode())
		require.Equal(t, 50, strings.Count(page, `name="ref"`))
		require.Contains(t, page, "<strong>60</strong> match")
		for _, of := range []string{"state=poisoned", "state=poisoned&state=poisoned", "state=poisoned&state=pending", "state=poisoned&type=t", "state=poisoned&error=SMTP", "handler=mail"} {
			require.Contains(t, r.page("messages?"+of), "<strong>60</strong> match", of)
		}
		require.Contains(t, r.page("messages"), "<strong>120</strong> in all")
		require.Contains(t, r.page("messages?state=poisoned&handler=ship&handler=nobody"), "<strong>0</strong> match")
		next := strings.ReplaceAll(between(t, page, `href="./messages?after=`, `"`), "&amp;", "&")
		page = r.page("messages?after=" + next)
		require.Equal(t, 10, strings.Count(page, `name="ref"`))
		require.Contains(t, page, "Back to the first")
		require.Equal(t, 400, r.get("messages?after=nonsense").Status)
		require.Equal(t, 400, r.get("messages?from=yesterday").Status)
		require.Contains(t, r.page("messages?id=nobody"), "Nothing matches.")
	})
}

func between(t testing.TB, text, before, after string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, before)
	require.True(t, ok, "%s is not in %s", before, text)
	found, _, ok := strings.Cut(rest, after)
	require.True(t, ok)
	return found
}
