package dashboard_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// Contract 15: payloads are shown to operators, and sealed ones only where the inbox's Ops opens them.
func TestPagesShowThatAContentIsSealed(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		for offset, opens := range []bool{false, true} {
			name := fmt.Sprint("m", offset)
			box := inboxtest.NewBox("key-1")
			sealed := []inbox.Option{box.Option(), inbox.Configure(func(o *inbox.Options) {
				o.Ops = func(o *ops.Options) { o.OpenSealed = opens }
			})}
			r := newRigOf(t, d, sealed, nil, func(o *dashboard.Options) { o.ShowPayloads = true })
			r.accept(handler.RawMessage{ID: name, Content: []byte("secret")})
			ctx, cancel := context.WithTimeout(t.Context(), inboxtest.Patience)
			id := r.reject(int64(offset), "bad", func(row *models.RejectedMessage) {
				var err error
				row.Value, _, err = box.Seal(ctx, handler.Identity{Channel: row.Channel, ID: row.ID}, []byte("secret"))
				require.NoError(t, err)
				row.Headers = properties.Seal{Key: "key-1"}.AddToRejected("[]")
			})
			cancel()
			for _, page := range []string{"message?id=" + name, "rejected-message?id=" + id} {
				got := r.page(page)
				if opens {
					require.Contains(t, got, "secret", page)
					require.NotContains(t, got, "sealed with key", page)
				} else {
					require.NotContains(t, got, "secret", page)
					require.Contains(t, got, "Not shown: sealed with key &#34;key-1&#34;", page)
				}
				require.NotContains(t, r.as(dashboard.Viewer).page(page), "secret", page)
				r.as(dashboard.Admin)
			}
		}
	})
}
