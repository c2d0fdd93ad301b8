package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
)

var decoder = envelope.DecoderConfig{Type: "t", ID: envelope.KafkaCoordinates()}

func consuming(kafka *kafkatest.Kafka) inbox.ChannelOption {
	return inbox.Kafka(kafkaconsumer.Config{Brokers: kafka.Brokers(), Topics: []string{"orders"}, GroupID: "g",
		Decoder:        decoder,
		SessionTimeout: 30 * time.Second, RebalanceTimeout: time.Minute, HeartbeatInterval: 50 * time.Millisecond,
		WatchInterval: 50 * time.Millisecond,
		FetchMaxWait:  100 * time.Millisecond, RequestTimeout: 10 * time.Second, DialTimeout: 10 * time.Second})
}

func TestHaltedPartitionFailsReadinessAndShowsItsLag(t *testing.T) {
	t.Parallel()
	m, provider := newMeter(t)
	kafka := kafkatest.Start(t, kafkatest.Topic("orders", 2))
	ib := inboxtest.New(t, fxtest.OpenDB(t), inboxtest.Brisk(), provider, inbox.Configure(func(o *inbox.Options) {
		o.SampleInterval = 5 * time.Millisecond
		o.Acceptor.Unrouted = acceptor.UnroutedHalt
	}),
		inbox.Channel("c", inbox.Kafka(kafkaconsumer.Config{Brokers: kafka.Brokers(), Topics: []string{"orders"},
			GroupID: "g", WatchInterval: 50 * time.Millisecond,
			Decoder: envelope.DecoderConfig{ID: envelope.KafkaCoordinates(), TypeHeader: "type"}}),
			inbox.On("t", inboxtest.Do("h", inboxtest.Nothing))))
	inboxtest.Start(t, ib)
	produce := func(partition int, kind string) {
		require.NoError(t, kafka.Produce("orders", kafkatest.Record{Partition: partition, Value: []byte("1"),
			Headers: []kafkatest.Header{{Key: "type", Value: []byte(kind)}}}))
	}
	produce(0, "t")
	produce(1, "t")
	inboxtest.Eventually(t, func() bool {
		return ib.Counters().Accepted == 2 && ib.Health().Ready()
	}, "both partitions are consumed")
	produce(1, "nobody's")
	produce(1, "t")
	inboxtest.Eventually(t, func() bool { return len(ib.Health().Consumers[0].Halted()) == 1 }, "one is halted")
	h := ib.Health()
	require.Equal(t, inbox.HealthUnhealthy, h.State)
	require.Equal(t, health.Halted, h.Reasons[0].Code)
	require.Contains(t, h.Reasons[0].Detail, "orders/1 is halted before offset 1")
	require.Equal(t, "c", h.Reasons[0].Channel)
	require.Len(t, h.Reasons, 1, "reported once")
	require.True(t, h.Live(), "a restart meets the same record")
	answer := httptest.NewRecorder()
	ib.ReadyHandler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/ready", nil))
	require.Equal(t, http.StatusServiceUnavailable, answer.Code)
	require.Contains(t, answer.Body.String(), `"code":"halted_partition"`)

	var shown map[string][]point
	inboxtest.Eventually(t, func() bool {
		shown = m.collect(t)
		return by(shown["inbox.consumer.lag"], "messaging.destination.partition.id")["1"] == 2
	}, "the halted partition's lag is shown")
	require.Equal(t, map[string]float64{"0": 0, "1": 1},
		by(shown["inbox.consumer.halted"], "messaging.destination.partition.id"))
	lag := shown["inbox.consumer.lag"][0]
	require.Equal(t, []string{"c", "g", "orders", "kafka"},
		[]string{lag.of("inbox.channel"), lag.of("messaging.consumer.group.name"),
			lag.of("messaging.destination.name"), lag.of("messaging.system")})
	require.EqualValues(t, 2, by(shown["inbox.health"], "inbox.health.reason")[health.Halted])
	require.Equal(t, map[string]float64{"c": 1}, by(shown["inbox.records.rejected"], "inbox.channel"))
}

func TestRecordsAreTracedFromTheirProducer(t *testing.T) {
	for name, mode := range map[string][]inbox.ChannelOption{"inbox": nil, "direct": {inbox.Direct()},
		"inline": {inbox.Inline()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen, _, option := newSpans(t)
			m, provider := newMeter(t)
			kafka := kafkatest.Start(t, kafkatest.Topic("orders", 1))
			calls := 0
			on := inbox.On("t", inboxtest.Do("h", func(context.Context, inboxtest.Bytes) error {
				if calls++; calls == 1 {
					return handler.RetryAfter(time.Millisecond, errors.New("not yet"))
				}
				return nil
			}))
			cfg := consuming(kafka)
			if name == "inline" {
				cfg = inbox.Kafka(kafkaconsumer.Config{Brokers: kafka.Brokers(), Topics: []string{"orders"}, GroupID: "g",
					Decoder: envelope.DecoderConfig{Type: "t", ID: envelope.HeaderID("id")}})
			}
			ib := inboxtest.New(t, fxtest.OpenDB(t), inboxtest.Brisk(), option, provider, w3c,
				inbox.Channel("c", append(mode, cfg, on)...))
			inboxtest.Start(t, ib)
			traceID, spanID, header := producer(7)
			require.NoError(t, kafka.Produce("orders", kafkatest.Record{Value: []byte("1"),
				Headers: []kafkatest.Header{{Key: "traceparent", Value: []byte(header)}, {Key: "id", Value: []byte("m1")}}}))
			inboxtest.Eventually(t, func() bool {
				return len(seen.named("process h")) == 2 && ib.Counters().Processed == 1
			}, "both attempts have ended")
			for i, attempt := range seen.named("process h") {
				require.Equal(t, traceID, traceOf(attempt))
				require.Equal(t, spanID, attempt.Parent().SpanID().String())
				attributes := attributesOf(attempt)
				require.Equal(t, []string{"kafka", "orders", "0", "0", fmt.Sprint(i + 1)},
					[]string{attributes["messaging.system"], attributes["messaging.destination.name"],
						attributes["messaging.destination.partition.id"], attributes["messaging.kafka.offset"],
						attributes["inbox.attempt"]})
				require.Equal(t, []string{"failed", "completed"}[i], attributes["inbox.outcome"])
				if accept := seen.named("accept c"); name == "inbox" {
					require.Equal(t, []string{id(accept[0])}, linked(attempt))
				} else {
					require.Empty(t, accept)
					require.Equal(t, []string{spanID}, linked(attempt))
				}
			}
			// An attempt is counted before its duration is recorded, so the second may still be missing.
			var runs []point
			inboxtest.Eventually(t, func() bool {
				runs = m.collect(t)["messaging.process.duration"]
				return len(runs) == 2 && runs[0].count == 1 && runs[1].count == 1
			}, "both attempts have a duration")
			for _, run := range runs {
				require.Equal(t, "kafka", run.of("messaging.system"))
			}
		})
	}
}

func TestSkippedInlineMessagesAreCountedByChannel(t *testing.T) {
	t.Parallel()
	m, provider := newMeter(t)
	kafka := kafkatest.Start(t, kafkatest.Topic("orders", 1))
	ib := inboxtest.New(t, fxtest.OpenDB(t), inboxtest.Brisk(), provider, inbox.Channel("c", inbox.Inline(),
		inbox.Kafka(kafkaconsumer.Config{Brokers: kafka.Brokers(), Topics: []string{"orders"}, GroupID: "g",
			Decoder: envelope.DecoderConfig{Type: "t", ID: envelope.HeaderID("id")}}),
		inbox.On("t", inboxtest.Do("h", inboxtest.Nothing))))
	inboxtest.Start(t, ib)
	for _, key := range []string{"m1", "m1", ""} {
		record := kafkatest.Record{Value: []byte("1")}
		if key != "" {
			record.Headers = []kafkatest.Header{{Key: "id", Value: []byte(key)}}
		}
		require.NoError(t, kafka.Produce("orders", record))
	}
	inboxtest.Eventually(t, func() bool {
		c := ib.Counters()
		return c.DuplicateSkipped == 1 && c.MissingKey == 1
	}, "all three are done with")
	collected := m.collect(t)
	require.Equal(t, map[string]float64{"c": 1}, by(collected["inbox.inline.duplicates_skipped"], "inbox.channel"))
	require.Equal(t, map[string]float64{"c": 1}, by(collected["inbox.inline.missing_keys"], "inbox.channel"))
}

// TestStalledSynchronousChannelIsUnhealthy proves contract 11.5: a stalled Inline or
// Direct channel is reported like stalled work in the inbox. A stall that an outage causes is
// excused.
func TestStalledSynchronousChannelIsUnhealthy(t *testing.T) {
	for name, mode := range map[string]inbox.ChannelOption{"direct": inbox.Direct(), "inline": inbox.Inline()} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
				r := newStanding(t, d, mode)
				r.receive(t, "m1")
				require.Empty(t, r.consumer())
				r.clock.Advance(2 * time.Minute)
				r.becomes(t, inbox.HealthDegraded)
				require.True(t, r.ib.Health().Ready())
				r.clock.Advance(3 * time.Minute)
				r.becomes(t, inbox.HealthUnhealthy)
				require.False(t, r.ib.Health().Ready())
				require.True(t, r.ib.Health().Live(), "a restart fixes no handler")
				r.leave <- nil
				r.becomes(t, "")
				r.receive(t, "m2")
				require.Empty(t, r.consumer())
				close(r.leave)
			})
		})
	}
}

func TestOutageExcusesAStalledInlineChannel(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newStanding(t, d, inbox.Inline())
		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_markers RENAME TO away`)
		r.produce(t, "m1")
		inboxtest.Eventually(t, func() bool { return r.ib.Health().InPlaceOutages["c"] != nil }, "the store is missed")
		r.clock.Advance(10 * time.Minute)
		r.becomes(t, inbox.HealthDegraded)
		require.True(t, r.ib.Health().Ready(), "it will go on by itself")
		inboxtest.Exec(t, d.DB, `ALTER TABLE away RENAME TO inbox_markers`)
		inboxtest.Receive(t, r.entered, "m1")
		r.clock.Advance(10 * time.Minute)
		require.Equal(t, inbox.HealthDegraded, r.consumer(), "the outage is over when its attempt is")
		r.leave <- handler.RetryAfter(time.Millisecond, errors.New("not yet"))
		inboxtest.Receive(t, r.entered, "m1 again")
		require.Empty(t, r.ib.Health().InPlaceOutages)
		require.Equal(t, inbox.HealthDegraded, r.consumer(), "right after it progress gets its time")
		r.leave <- nil
		r.becomes(t, "")
		r.receive(t, "m2")
		r.clock.Advance(5 * time.Minute)
		r.becomes(t, inbox.HealthUnhealthy)
		close(r.leave)
	})
}

// TestPausedHandlerExcusesAStalledChannel proves contract 7.6: a partition that waits for a
// paused handler owes no progress.
func TestPausedHandlerExcusesAStalledChannel(t *testing.T) {
	inboxtest.OnPostgres(t, func(t *testing.T, d *inboxtest.Database) {
		r := newStanding(t, d, inbox.Inline())
		require.NoError(t, r.ib.Pause(t.Context(), "h"))
		inboxtest.Eventually(t, func() bool {
			backlog := r.ib.Health().Backlog
			return len(backlog) == 1 && backlog[0].Paused
		}, "the pause is obeyed")
		r.produce(t, "m1")
		inboxtest.Eventually(t, func() bool {
			c := r.ib.Health().Consumers[0]
			return len(c.Partitions) == 1 && c.Partitions[0].Lag == 1
		}, "the record is known to wait")
		r.clock.Advance(10 * time.Minute)
		inboxtest.Eventually(t, func() bool {
			h := r.ib.Health()
			return h.State == inbox.HealthDegraded && len(h.Reasons) == 1 &&
				strings.Contains(h.Reasons[0].Detail, `wait for paused handlers ["h"]`)
		}, "health names the paused handler and asks for no restart")
		require.NoError(t, r.ib.Resume(t.Context(), "h"))
		inboxtest.Receive(t, r.entered, "m1")
		r.leave <- nil
		r.becomes(t, "")
	})
}

// standing is an inbox with a channel whose handler blocks until it is released.
type standing struct {
	ib      *inbox.Inbox
	clock   *fxtest.Clock
	kafka   *kafkatest.Kafka
	entered chan struct{}
	leave   chan error
}

func newStanding(t *testing.T, d *inboxtest.Database, mode inbox.ChannelOption) *standing {
	t.Helper()
	r := &standing{clock: fxtest.NewClock(inboxtest.Noon), kafka: kafkatest.Start(t, kafkatest.Topic("orders", 1)),
		entered: make(chan struct{}, 10), leave: make(chan error)}
	r.ib = inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
		o.Clock = r.clock
		o.SampleInterval = 5 * time.Millisecond
	}),
		inbox.Channel("c", mode,
			inbox.Kafka(kafkaconsumer.Config{Brokers: r.kafka.Brokers(), Topics: []string{"orders"}, GroupID: "g",
				WatchInterval: 50 * time.Millisecond,
				Decoder:       envelope.DecoderConfig{Type: "t", ID: envelope.HeaderID("id")}}),
			inbox.On("t", inboxtest.Do("h", func(ctx context.Context, _ inboxtest.Bytes) error {
				r.entered <- struct{}{}
				select {
				case err := <-r.leave:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}, handler.Timeout(time.Minute)))))
	inboxtest.Start(t, r.ib)
	return r
}

func (r *standing) produce(t *testing.T, id string) {
	t.Helper()
	require.NoError(t, r.kafka.Produce("orders", kafkatest.Record{Value: []byte("1"),
		Headers: []kafkatest.Header{{Key: "id", Value: []byte(id)}}}))
}

// receive makes the handler run.
func (r *standing) receive(t *testing.T, id string) {
	t.Helper()
	r.produce(t, id)
	inboxtest.Receive(t, r.entered, id)
}

// consumer returns the inbox's health state that the channel causes. It is empty if nothing is
// wrong.
func (r *standing) consumer() ops.HealthState {
	for _, reason := range r.ib.Health().Reasons {
		if reason.Code == health.Consumer {
			return reason.State
		}
	}
	return ""
}

func (r *standing) becomes(t *testing.T, want ops.HealthState) {
	t.Helper()
	inboxtest.Eventually(t, func() bool {
		return r.consumer() == want
	}, fmt.Sprintf("the channel is %q, not %q", want, r.consumer()))
}
