package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// world is a shop's inbox and its dashboard.
type world struct {
	t     testing.TB
	db    *gorm.DB
	ib    *inbox.Inbox
	ops   *ops.Ops
	clock *fxtest.Clock
	site  string
	dash  *dashboard.Dashboard
	// asked counts the requests of live parts.
	asked atomic.Int64
	// out makes the server redirect every request to a login page.
	out atomic.Bool

	mu    sync.Mutex
	role  dashboard.Role
	fails map[string]error // by "key/ID"
}

const (
	mail    = "orders.confirmation-mail"
	ship    = "orders.shipment"
	invoice = "billing.invoice"
	search  = "search.index"
)

func newWorld(t testing.TB, options ...func(*dashboard.Options)) *world {
	t.Helper()
	w := &world{t: t, db: testenv.SQLite(t), clock: fxtest.NewClock(inboxtest.Noon), role: dashboard.Admin,
		fails: map[string]error{}}
	run := func(_ context.Context, m inboxtest.Bytes) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.fails[m.HandlerKey+"/"+m.ID]
	}
	var err error
	w.ib, err = inbox.New("webshop", w.db, inbox.Configure(func(o *inbox.Options) {
		o.Clock = w.clock
		o.Backoff = func(failures int) time.Duration { return time.Second << failures } // not random, as the default
	}),
		inbox.Channel("shop",
			inbox.On("order.placed", inboxtest.Do(mail, run), inboxtest.Do(ship, run, handler.Ordered()),
				inboxtest.Do(search, run)),
			inbox.On("order.paid", inboxtest.Do(invoice, run))))
	require.NoError(t, err)
	require.NoError(t, w.ib.Migrate(t.Context()))
	w.ops, err = w.ib.Ops(func(o *ops.Options) { o.AllowReplay = true })
	require.NoError(t, err)
	dash, err := dashboard.New(w.ops, append([]func(*dashboard.Options){func(o *dashboard.Options) {
		o.Authorizer = w.authorize
		o.Clock = w.clock
		o.ShowPayloads = true
	}}, options...)...)
	require.NoError(t, err)
	w.dash = dash
	mux := http.NewServeMux()
	mux.Handle("/inbox/", http.StripPrefix("/inbox", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("part") != "" {
			w.asked.Add(1)
			if w.out.Load() {
				http.Redirect(rw, r, "/sign-in", http.StatusSeeOther)
				return
			}
		}
		dash.ServeHTTP(rw, r)
	})))
	mux.HandleFunc("/sign-in", func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(rw, "<!doctype html><title>Sign in</title>")
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		require.NoError(t, dash.Stop(context.Background()))
		server.CloseClientConnections()
		server.Close()
	})
	w.site = server.URL + "/inbox/"
	return w
}

func (w *world) authorize(*http.Request) (dashboard.Principal, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return dashboard.Principal{Actor: "ada@example.org", Role: w.role}, nil
}

func (w *world) as(role dashboard.Role) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.role = role
}

func (w *world) fail(key string, err error, ids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.fails[key+"/"+id] = err
	}
}

func (w *world) accept(kind string, edit func(*handler.RawMessage), ids ...string) {
	w.t.Helper()
	for i, id := range ids {
		m := handler.RawMessage{Channel: "shop", ID: id, Type: kind, Source: "/webshop/checkout",
			ContentType: "application/json", Transport: "kafka",
			Content: []byte("{\n  \"order\": \"" + id +
				"\",\n  \"total\": \"129.90\",\n  \"currency\": \"EUR\",\n  \"customer\": { \"name\": \"Zoë Łukasiewicz\" }\n}"),
			Properties: handler.Properties{
				Headers: []handler.Header{{Key: "traceparent",
					Value: []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")},
					{Key: "tenant", Value: []byte("eu-west")}, {Key: "signature", Value: []byte{0xde, 0xad, 0xbe, 0xef}}},
				Attributes: map[string]string{"partitionkey": "customer-7", "dataschema": "https://example.org/schemas/order/3"},
				Kafka: &handler.KafkaCoordinates{Topic: "shop.orders", Partition: 3, Offset: int64(88120 + i),
					Timestamp: w.clock.Now()},
			}}
		if edit != nil {
			edit(&m)
		}
		_, err := w.ib.Accept(w.t.Context(), m)
		require.NoError(w.t, err)
	}
}

func (w *world) process() { w.t.Helper(); inboxtest.Process(w.t, w.ib) }

func ids(format string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf(format, i+1))
	}
	return all
}

// furnish fills the inbox with realistic problems: poisoned and failing messages with several
// causes, a blocked lane, a backlog, rejected records, a gap, and dead and living workers.
func (w *world) furnish() {
	w.t.Helper()
	for i, id := range ids("order-2026-%05d", 14) {
		w.fail(mail,
			handler.Poison(fmt.Errorf("send mail to \"customer-%d@example.org\": smtp.example.org:587: 550 5.1.1 mailbox %d unavailable", i, 9000+i)), id)
	}
	w.accept("order.placed", nil, ids("order-2026-%05d", 40)...)
	for i, id := range ids("payment-%04d", 6) {
		w.fail(invoice, handler.Poison(fmt.Errorf("post invoice: ERP answered 409: fiscal period 2026-%02d is closed", i+1)),
			id)
	}
	for _, id := range ids("payment-1%03d", 9) {
		w.fail(invoice, errors.New("post invoice: context deadline exceeded after 10s"), id)
	}
	w.accept("order.paid", nil, append(ids("payment-%04d", 6), ids("payment-1%03d", 9)...)...)
	lane := func(m *handler.RawMessage) { m.OrderingKey = []byte("customer-7") }
	w.fail(ship, handler.Poison(errors.New("warehouse: address line 2 is longer than 35 characters")), "order-c7-1")
	w.accept("order.placed", lane, ids("order-c7-%d", 3)...)
	w.process()
	w.clock.Advance(7 * time.Minute)
	w.accept("order.paid", nil, ids("payment-2%03d", 23)...)
	w.clock.Advance(2 * time.Minute)

	for i, reason := range []string{"no ID: the record has no header ce_id and no key",
		"the value is not JSON: invalid character 'N' looking for beginning of value",
		"message of 2,104,332 bytes: MaxMessageBytes is 1,048,576"} {
		w.reject(int64(5510+i), reason)
	}
	require.NoError(w.t, w.db.Create(&models.Gap{ID: uuid.NewString(), Channel: "shop", Topic: "shop.orders", Partition: 1,
		FromOffset: 10233, ToOffset: 10871,
		Reason:  "offset out of range: records were removed by retention before they were read",
		FoundAt: w.clock.Now().Add(-3 * time.Hour)}).Error)
	removed, current := w.clock.Now().Add(-26*time.Hour), w.clock.Now()
	require.NoError(w.t, w.db.Create([]models.Partition{
		{Channel: "shop", GroupID: "fulfilment", Topic: "shop.orders-v1", CaughtUpAt: &removed, DeclaredAt: removed,
			CountedAt: removed},
		{Channel: "shop", GroupID: "fulfilment", Topic: "shop.orders", CaughtUpAt: &current, DeclaredAt: current,
			CountedAt: current}}).Error)
	keys, err := json.Marshal(map[string]string{mail: "shop", ship: "shop", invoice: "shop", search: "shop"})
	require.NoError(w.t, err)
	settings, err := json.Marshal(ops.WorkerSettings{WorkerTimeout: 30 * time.Second, SweepInterval: 5 * time.Second,
		Handlers: []ops.HandlerSettings{{Keys: []string{mail}, Channel: "shop", Mode: "Inbox", Type: "order.placed", Kind: "plain",
			Timeout: 30 * time.Second, MaxRetries: 5, Concurrency: 4, Retention: 72 * time.Hour, BatchSize: 1, TxGroup: 1,
			BreakerFailures: 3, BreakerOpenFor: time.Minute}}})
	require.NoError(w.t, err)
	now := w.clock.Now()
	past := now.Add(-26 * time.Hour)
	for i, worker := range []models.Worker{
		{Host: "shop-7c9d8-x2x4q", PID: 1, StartedAt: now.Add(-50 * time.Hour), HeartbeatAt: now.Add(-4 * time.Second),
			Consumers: haltedConsumers},
		{Host: "shop-7c9d8-9kk2p", PID: 1, StartedAt: now.Add(-50 * time.Hour), HeartbeatAt: now.Add(-2 * time.Second)},
		{Host: "shop-55bd1-qq81z", PID: 1, StartedAt: now.Add(-90 * time.Hour), HeartbeatAt: past, StoppedAt: &past},
		{Host: "shop-55bd1-0l9fa", PID: 1, StartedAt: now.Add(-90 * time.Hour), HeartbeatAt: now.Add(-2 * time.Minute)},
	} {
		worker.ID, worker.HandlerKeys = fmt.Sprintf("0190c1a2-0000-7000-8000-%012d", i), string(keys)
		worker.Settings = string(settings)
		require.NoError(w.t, w.db.Create(&worker).Error)
	}
	require.NoError(w.t, w.ops.Pause(w.t.Context(), "grace@example.org", search))
}

// reject stores a rejected record that would be accepted now.
func (w *world) reject(offset int64, reason string) (id string) {
	w.t.Helper()
	row := models.RejectedMessage{ID: fmt.Sprintf("0190c1a2-1111-7000-8000-%012d", offset), Channel: "shop",
		Topic: "shop.orders", Partition: 2, Offset: offset, Timestamp: w.clock.Now(),
		Key: []byte("customer-9"), Value: []byte(`{"order": "order-r` + fmt.Sprint(offset) + `"}`),
		Headers: properties.SerializeHeaders([]handler.Header{{Key: "ce_specversion", Value: []byte("1.0")},
			{Key: "ce_id", Value: fmt.Appendf(nil, "order-r%d", offset)},
			{Key: "ce_type", Value: []byte("order.placed")}, {Key: "ce_source", Value: []byte("/webshop")}}), Reason: reason,
		RejectedAt: w.clock.Now()}
	require.NoError(w.t, w.db.Create(&row).Error)
	return row.ID
}

// haltedConsumers is the state of a consumer with a partition that a record halts and one that halts after a gap.
const haltedConsumers = `[{"channel":"shop","group":"fulfilment","state":"running","since":"2026-01-01T12:00:00Z","lag":1842,"partitions":[
	{"topic":"shop.orders","partition":2,"state":"halted","position":10412,"committed":10412,"lag":17,"at":"2026-01-01T12:00:00Z",
		"problem":"message \"order-r5511\" is invalid: unrouted: there is no handler for the type order.cancelled","halted":true,"skippable":true},
	{"topic":"shop.orders","partition":7,"state":"halted","position":90,"committed":90,"lag":1825,"at":"2026-01-01T12:00:00Z",
		"problem":"offset 90 of shop.orders/7 is out of range, the log holds 1200 to 1914: 1110 records were deleted unread","halted":true,"after_gap":true},
	{"topic":"shop.orders","partition":0,"state":"fetching","position":15002,"committed":15002,"lag":0}],"unlisted":0}]`
