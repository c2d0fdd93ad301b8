package inbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/models"
)

// TestStoppingInboxRerunsNoRejectedRecord proves contract 7.6: a stop waits for what it lets begin, so nothing
// begins until all of it has stopped.
func TestStoppingInboxRerunsNoRejectedRecord(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		began, release := make(chan struct{}), make(chan struct{})
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(),
			directChannel(inbox.On("t", inboxtest.Do("direct", func(context.Context, inboxtest.Bytes) error {
				return errors.New("bank said no")
			}))),
			inboxtest.Handlers(inboxtest.Do("slow", func(context.Context, inboxtest.Bytes) error {
				close(began)
				<-release
				return nil
			})))
		headers := []handler.Header{{Key: "content-type", Value: []byte("application/cloudevents+json")}}
		row := models.RejectedMessage{ID: uuid.NewString(), Channel: "events", Topic: "events", Timestamp: inboxtest.Noon,
			Value: []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t"}`), Reason: "old",
			Headers: properties.SerializeHeaders(headers), RejectedAt: inboxtest.Noon}
		require.NoError(t, d.DB.Create(&row).Error)
		require.NoError(t, ib.Start(t.Context()))
		_, err := ib.Accept(t.Context(), inboxtest.Message("m"))
		require.NoError(t, err)
		<-began

		stopped := make(chan error, 1)
		go func() { stopped <- ib.Stop(t.Context()) }()
		rerun := func() error {
			_, err := ib.AcceptRejected(t.Context(), row.ID)
			return err
		}
		stopping := func() bool { return rerun() != nil && !errors.As(rerun(), new(*handler.StillBadError)) }
		inboxtest.Eventually(t, stopping, "nothing begins any more")
		for range 20 {
			require.ErrorContains(t, rerun(), "the inbox is stopping")
		}
		close(release)
		select {
		case err := <-stopped:
			require.NoError(t, err)
		case <-time.After(inboxtest.Patience):
			require.Fail(t, "the inbox has not stopped")
		}
		require.ErrorAs(t, rerun(), new(*handler.StillBadError), "a stopped inbox may run it")
	})
}
