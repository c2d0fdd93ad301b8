package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
)

// TestNoCommandShowsCardNumbersOrCredentials proves contract 11.6: the default redaction applies,
// because inboxctl has no hook of the application.
func TestNoCommandShowsCardNumbersOrCredentials(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		const card, token = "4111 1111 1111 1111", "s3cr3t"
		m := inboxtest.Message("a")
		m.Content = []byte(`{"card":"` + card + `","api_key":"` + token + `","order":"o-1"}`)
		m.OrderingKey = []byte(card)
		headers := []handler.Header{{Key: "Authorization", Value: []byte("Bearer " + token)}, {Key: "x", Value: []byte(card)}}
		m.Properties.Headers = headers
		m.Properties.Attributes = map[string]string{"Token": token, "subject": "card " + card}
		m.Properties.Kafka = &handler.KafkaCoordinates{Topic: "orders", Key: []byte(card)}
		_, err := r.ib.Accept(t.Context(), m)
		require.NoError(t, err)
		r.fails["a"] = "card " + card + " refused, password=" + token
		inboxtest.Process(t, r.ib)
		rejected := r.reject(1, []byte(card), m.Content)
		inboxtest.Exec(t, r.d.DB, "UPDATE inbox_rejected_messages SET reason = ?, headers = ?", "no card "+card,
			properties.SerializeHeaders(headers))
		require.NoError(t, r.d.DB.Create(&models.Worker{ID: "0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11", HandlerKeys: "{}",
			Health:    `[{"code":"consumer","state":"degraded","detail":"handler: card ` + card + `"}]`,
			StartedAt: inboxtest.Noon, HeartbeatAt: inboxtest.Noon}).Error)

		for _, args := range [][]string{
			{"status"}, {"list"}, {"list", "--wide"}, {"failures"}, {"show", "a"}, {"show", "a", "--show-payload"}, {"workers"},
			{"rejected", "list", "--wide"}, {"rejected", "show", rejected}, {"rejected", "show", rejected, "--show-payload"},
			{"audit"},
		} {
			for _, args := range [][]string{args, append(args, "-o", "json")} {
				out := r.done(args...)
				require.NotContains(t, out.out+out.errOut, "1111 1111", "%v", args)
				require.NotContains(t, out.out+out.errOut, token, "%v", args)
			}
		}
		shown := r.done("show", "a", "--show-payload").out
		require.Contains(t, shown, `{"card":"[redacted]","api_key":"[redacted]","order":"o-1"}`)
		require.Contains(t, shown, "card [redacted] refused, password=[redacted]")
		require.Contains(t, r.done("list", "--error", "4111").out, "No status found.")
	})
}
