package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/examples/internal/programtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/models"
)

func TestMain(m *testing.M) { programtest.Main(m, main) }

// What the page has its readers do last: produce two orders, of which one can
// only be served when there is more of the article.
func TestProgramServesOneOrderAndRetriesAnother(t *testing.T) {
	dsn, db := programtest.Database(t, &Stock{SKU: "tea", Available: 10})
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 1))
	order := func(id, body string) kafkatest.Record {
		return kafkatest.Record{Value: []byte(body), Headers: []kafkatest.Header{
			{Key: "MessageId", Value: []byte(id)}, {Key: "MessageType", Value: []byte("order.placed")}}}
	}
	require.NoError(t, kafka.Produce("orders.events",
		order("o-1", `{"sku":"tea","quantity":3}`), order("o-2", `{"sku":"tea","quantity":12}`)))

	stop := programtest.Start(t, t.Output(), dsn, kafka.Brokers())
	states := func() map[string]string {
		var rows []struct{ MessageID, State string }
		look, err := os.ReadFile("look.sql")
		require.NoError(t, err)
		if db.Raw(string(look)).Scan(&rows).Error != nil {
			return nil // the program has not made the tables yet
		}
		found := map[string]string{}
		for _, row := range rows {
			found[row.MessageID] = row.State
		}
		return found
	}
	require.Eventually(t, func() bool {
		found := states()
		return found["o-1"] == "completed" && found["o-2"] == "pending, 1 errors"
	}, 2*time.Minute, 5*time.Millisecond)
	require.NoError(t, db.Model(&Stock{}).Where("sku = ?", "tea").Update("available", 100).Error)
	require.Eventually(t, func() bool { return states()["o-2"] == "completed" }, 2*time.Minute, 20*time.Millisecond)
	stop()
	var open int64
	require.NoError(t, db.Model(&models.HandlerStatus{}).Where("completed_at IS NULL").Count(&open).Error)
	require.Zero(t, open)
}
