package consuming

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// certified returns a certificate for 127.0.0.1 and the pool that trusts it.
func certified(t *testing.T) (tls.Certificate, *x509.CertPool) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	require.Len(t, server.TLS.Certificates, 1)
	return server.TLS.Certificates[0], pool
}

// Contract 7.5.
func TestRecordsComeThroughTLSAndSCRAM(t *testing.T) {
	certificate, authorities := certified(t)
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 1),
		kafkatest.SASL("SCRAM-SHA-512", "fulfilment", "secret"),
		kafkatest.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}}, &tls.Config{RootCAs: authorities}))
	fulfil := func(context.Context, handler.Message[OrderPlaced]) error { return nil }
	ib, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
		secured(kafka.Brokers(), authorities, "secret", fulfil))
	require.NoError(t, err)
	require.NoError(t, ib.Start(t.Context()))
	defer func() { require.NoError(t, ib.Stop(context.WithoutCancel(t.Context()))) }()
	require.NoError(t, kafka.Produce("orders.events", kafkatest.Record{Value: []byte(`{"OrderID": "o-1"}`),
		Headers: []kafkatest.Header{{Key: "MessageId", Value: []byte("o-1")}, {Key: "MessageType", Value: []byte("order.placed")}}}))
	fxtest.WaitCompleted(t, ib, 30*time.Second, "o-1", "fulfil-order")
}

// Contract 7.11.
func TestPeriodIsReadAgain(t *testing.T) {
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 1))
	ib, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
		inbox.Channel("orders.events", inbox.Kafka(kafkaconsumer.Config{Brokers: kafka.Brokers(),
			Topics: []string{"orders.events"}, GroupID: "fulfilment"}), inbox.On("order.placed", inbox.Func("fulfil-order",
			func(context.Context, handler.Message[OrderPlaced]) error { return nil }))))
	require.NoError(t, err)
	require.NoError(t, ib.Migrate(t.Context()))
	require.NoError(t, kafka.Produce("orders.events", kafkatest.Record{Value: []byte(`{"OrderID": "o-1"}`),
		Headers: []kafkatest.Header{{Key: "MessageId", Value: []byte("o-1")}, {Key: "MessageType", Value: []byte("order.placed")}}}))
	hourAgo := time.Now().Add(-time.Hour)
	for _, dryRun := range []bool{true, false} {
		result, err := readAgain(t.Context(), ib, "ada@example.org", hourAgo, time.Now().Add(time.Hour), dryRun)
		require.NoError(t, err)
		require.Equal(t, envelope.ReadAgainResult{Read: 1, Accepted: 1,
			ByType: map[string]envelope.TypeCounts{"order.placed": {Accepted: 1}}}, result)
	}
	result, err := readAgain(t.Context(), ib, "ada@example.org", hourAgo, time.Time{}, false)
	require.NoError(t, err)
	require.EqualValues(t, 1, result.Duplicates)
}

// Contract 4.4, 4.5.
func TestTombstoneWithoutHeadersIsHandled(t *testing.T) {
	kafka := kafkatest.Start(t, kafkatest.Topic("orders.events", 1))
	cfg := withTombstones
	cfg.Brokers, cfg.Topics, cfg.GroupID = kafka.Brokers(), []string{"orders.events"}, "fulfilment"
	deleted := make(chan handler.Message[[]byte], 1)
	ib, err := inbox.New("orders", fxtest.OpenDB(t), inbox.Configure(func(o *inbox.Options) { o.Migrate = true }),
		inbox.Channel("orders.events", inbox.Kafka(cfg), inbox.On("order.deleted", inbox.Func("forget-order",
			func(_ context.Context, m handler.Message[[]byte]) error {
				deleted <- m
				return nil
			}))))
	require.NoError(t, err)
	require.NoError(t, ib.Start(t.Context()))
	defer func() { require.NoError(t, ib.Stop(context.WithoutCancel(t.Context()))) }()
	require.NoError(t, kafka.Produce("orders.events", kafkatest.Record{Key: []byte("o-1")}))
	select {
	case m := <-deleted:
		require.Empty(t, m.Payload)
		require.True(t, m.Properties.Kafka.Tombstone)
		require.Equal(t, "o-1", string(m.Properties.Kafka.Key))
	case <-time.After(30 * time.Second):
		require.Fail(t, "no handler ran")
	}
}

// Contract 4.4, 4.5.
func TestDecodersFindIDsAndTypes(t *testing.T) {
	header := func(pairs ...string) (all []handler.Header) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, handler.Header{Key: pairs[i], Value: []byte(pairs[i+1])})
		}
		return all
	}
	for name, tc := range map[string]struct {
		cfg    kafkaconsumer.Config
		record envelope.Record
		id     string
	}{
		"headers": {byHeaders, envelope.Record{Value: []byte("{}"),
			Headers: header("event-id", "o-1", "event-type", "order.placed")}, "o-1"},
		"body": {byBody, envelope.Record{Value: []byte(`{"EventID": "o-1"}`)}, "o-1"},
		"CloudEvents": {bySourceAndID, envelope.Record{Value: []byte("{}"), Headers: header("ce_specversion", "1.0",
			"ce_id", "o-1", "ce_source", "/shop", "ce_type", "order.placed")}, "/shop o-1"},
		"Debezium": {byDebezium, envelope.Record{Value: []byte("{}"),
			Headers: header("id", "o-1", "eventType", "order.placed")}, "o-1"},
	} {
		t.Run(name, func(t *testing.T) {
			decoder, err := envelope.NewDecoder(tc.cfg.Decoder, nil)
			require.NoError(t, err)
			received := decoder.Decode("orders.events", tc.record)
			require.NoError(t, received.Err)
			require.Len(t, received.Messages, 1)
			require.NoError(t, received.Messages[0].IDErr)
			require.Equal(t, tc.id, received.Messages[0].ID)
			require.Equal(t, "order.placed", received.Messages[0].Type)
		})
	}
}
