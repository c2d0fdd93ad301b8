package dashboard_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// TestNoPageShowsTextHiddenByTheRedactionHook proves contract 11.6: the hook is declared once, on the
// inbox.
func TestNoPageShowsTextHiddenByTheRedactionHook(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		const card, token = "4111 1111 1111 1111", "s3cr3t"
		hook := []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.Redact = redact.Common })}
		r := newRigOf(t, d, hook, allowReplay, func(o *dashboard.Options) { o.ShowPayloads = true })
		m := handler.RawMessage{ID: "a", OrderingKey: []byte(card),
			Content: []byte(`{"card":"` + card + `","api_key":"` + token + `"}`)}
		headers := []handler.Header{{Key: "Authorization", Value: []byte("Bearer " + token)}, {Key: "x", Value: []byte(card)}}
		m.Properties.Headers = headers
		m.Properties.Attributes = map[string]string{"Token": token, "subject": "card " + card}
		r.fails["mail/a"] = handler.Poison(errors.New("card " + card + " refused, password=" + token))
		r.accept(m)
		inboxtest.Process(t, r.ib)
		rejected := r.reject(1, "no card "+card, func(row *models.RejectedMessage) {
			row.Key, row.Value, row.Headers = []byte(card), m.Content, properties.SerializeHeaders(headers)
		})
		for _, page := range []string{"", "messages", "messages?error=4111", "message?id=a", "failures", "handlers",
			"consumers", "workers", "audit",
			"rejected", "rejected-message?id=" + rejected, "delete?id=a", "replay?id=a", "delete-rejected?id=" + rejected} {
			got := r.page(page)
			require.NotContains(t, got, "1111 1111", page)
			require.NotContains(t, got, token, page)
		}
		require.Contains(t, r.page("message?id=a"), "card [redacted] refused, password=[redacted]")
		require.NotContains(t, *inboxtest.Status(t, r.ib, "a", "mail").LastError, "1111", "it is stored so, too")
	})
}
