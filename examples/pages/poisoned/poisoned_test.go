package poisoned

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func wanted(id, address string) handler.RawMessage {
	return fxtest.JSON("shipping", "shipment.wanted", id, ShipmentWanted{id, address})
}

func shipping(spec *inbox.HandlerSpec) inbox.Option {
	return inbox.Channel("shipping", inbox.On("shipment.wanted", spec))
}

// Contract 5.7.
func TestHandlerErrorControlsRetries(t *testing.T) {
	var status int
	var err error
	ask := func(context.Context, string) (int, error) { return status, err }
	kit := fxtest.New(t, shipping(inbox.Func("ship", ship(ask))))

	kit.Accept(wanted("o-1", ""))
	kit.Process()
	require.Equal(t, "poison: no address", *kit.RequirePoisoned("o-1", "ship").LastError)

	err = errors.New("connection refused")
	kit.Accept(wanted("o-2", "here"))
	kit.Process()
	require.Equal(t, 1, kit.RequireFailed("o-2", "ship").ErrorCount)

	err, status = nil, http.StatusAccepted
	kit.Advance(2 * time.Second)
	kit.Process()
	require.Equal(t, 1, kit.RequirePending("o-2", "ship").ErrorCount, "a snooze charges nothing")

	status = http.StatusTooManyRequests
	kit.Advance(10 * time.Second)
	kit.Process()
	s := kit.RequireFailed("o-2", "ship")
	require.Equal(t, 2, s.ErrorCount)
	require.True(t, kit.Now().Add(time.Minute).Equal(*s.NextAttemptAt))

	status = http.StatusOK
	kit.Advance(time.Minute)
	kit.Process()
	kit.RequireCompleted("o-2", "ship")
}

// Contract 5.13.
func TestOpenBreakerChargesNothing(t *testing.T) {
	calls := 0
	ask := func(context.Context, string) (int, error) { calls++; return 0, errors.New("connection refused") }
	kit := fxtest.New(t, shipping(patient(ask)), inbox.Configure(func(o *inbox.Options) {
		o.Processor.Concurrency = 1
		o.Processor.Prefetch = 0
	}))
	for i := range 20 {
		kit.Accept(wanted("o-"+string(rune('a'+i)), "here"))
	}
	kit.Process()
	require.Equal(t, 5, calls)
	var charged int64
	require.NoError(t, kit.DB.Table(kit.Inbox.Tables().HandlerStatuses()).Where("error_count > 0").Count(&charged).Error)
	require.EqualValues(t, 5, charged)
}

// Contract 7.4, 11.1.
func TestRejectedMessagesAreReAcceptedAndAudited(t *testing.T) {
	kit := fxtest.New(t, shipping(inbox.Func("ship", ship(func(context.Context, string) (int, error) {
		return http.StatusOK, nil
	}))))
	for i, headers := range []string{`[{"k":"MessageId","v":"o-1"},{"k":"MessageType","v":"shipment.wanted"}]`, `[]`} {
		require.NoError(t, kit.DB.Create(&models.RejectedMessage{
			ID: fmt.Sprintf("0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f1%d", i), Channel: "shipping", Topic: "shipments",
			Offset: int64(i), Timestamp: kit.Now(),
			Value: []byte(`{"OrderID":"o-1","Address":"here"}`), Headers: headers, Reason: "no handler was there yet",
			RejectedAt: kit.Now(),
		}).Error)
	}
	for range 2 { // the second time, one is left
		result, err := acceptAgain(t.Context(), kit.Inbox, "ada", "shipping")
		require.NoError(t, err)
		require.EqualValues(t, 1, result.StillBad, "it has neither ID nor type")
		kit.Process()
		kit.RequireCompleted("o-1", "ship")
		var actors []string
		require.NoError(t, kit.DB.Model(&models.Audit{}).Where("action = ?", ops.ActionReAccept).Pluck("actor",
			&actors).Error)
		require.NotEmpty(t, actors)
		require.Equal(t, "ada", actors[0])
		if result.Done == 0 {
			return
		}
		require.EqualValues(t, 1, result.Done)
	}
	require.Fail(t, "it was accepted twice")
}

// The page's queries, on PostgreSQL: they find what they say, by an index where
// the table is large.
func TestDocumentedQueriesFindProblems(t *testing.T) {
	db := testenv.Postgres(t)
	ask := func(context.Context, string) (int, error) { return 0, errors.New("connection refused") }
	ib, err := inbox.New("shop", db, inbox.Configure(func(o *inbox.Options) {
		o.Processor.MaxRetries = 2
	}), shipping(inbox.Func("ship", ship(ask))))
	require.NoError(t, err)
	require.NoError(t, ib.Migrate(t.Context()))
	_, err = ib.Accept(t.Context(), wanted("o-1", "here"), wanted("o-2", ""), wanted("o-3", ""))
	require.NoError(t, err)
	_, err = ib.ProcessPending(t.Context())
	require.NoError(t, err)
	_, err = ib.Accept(t.Context(), wanted("o-4", "here"))
	require.NoError(t, err)

	var groups []struct {
		HandlerKey, Error string
		Statuses          int
	}
	query(t, db, "failures.sql", &groups)
	require.Len(t, groups, 1)
	require.Equal(t, "poison: no address", groups[0].Error)
	require.Equal(t, 2, groups[0].Statuses)
	var due []struct {
		HandlerKey string
		Due        int
	}
	query(t, db, "due.sql", &due)
	require.Len(t, due, 1)
	require.Equal(t, 1, due[0].Due)
	var found []struct{ HandlerKey, LastError string }
	query(t, db, "message.sql", &found)
	require.Len(t, found, 1)
	for _, statement := range strings.SplitAfter(text(t, "workers.sql"), ";\n") {
		require.NoError(t, db.Exec(statement).Error)
	}

	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.NoError(t, tx.Exec("SET LOCAL enable_seqscan = off").Error) // the tables are small
		for file, index := range map[string]string{
			"failures.sql": "inbox_handler_statuses_poisoned", "due.sql": "inbox_handler_statuses_due",
			"message.sql": "inbox_handler_statuses_pkey"} {
			var plan []string
			require.NoError(t, tx.Raw("EXPLAIN "+text(t, file)).Scan(&plan).Error)
			require.Contains(t, strings.Join(plan, "\n"), index)
			require.NotContains(t, strings.Join(plan, "\n"), "Seq Scan")
		}
		return nil
	}))
}

func query(t *testing.T, db *gorm.DB, file string, into any) {
	t.Helper()
	require.NoError(t, db.Raw(text(t, file)).Scan(into).Error)
}

func text(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}
