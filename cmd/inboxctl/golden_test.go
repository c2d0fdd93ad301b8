package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

var now = inboxtest.Noon

const (
	statusID = "0197a1c2-5b1e-7c3a-9d53-0a3c5c8f2f11"
	workerID = "0197a1c2-0000-7000-8000-000000000001"
)

func before(d time.Duration) time.Time { return now.Add(-d) }

// evil is a message ID that a terminal would act on: it sets the title, clears the screen, has an
// 8-bit escape, a line break and a right-to-left override.
const evil = "\x1b]0;gone\a\x1b[2J\u009b31mred\r\n\u202egpj.exe\u200b\x00\x7f"

var poisoned = ops.Status{
	ID: statusID, MessageID: "7f9c2ba4", HandlerKey: "orders.mail", State: ops.StatePoisoned, Version: 7, ErrorCount: 5,
	RequeuedCount: 1, PoisonedAt: before(time.Minute),
	LastError:   "dial tcp 10.0.0.7:25: connect: connection refused, and what else a mail server says",
	Fingerprint: "3f1c9a7e",
	CreatedAt:   before(3*time.Minute + 12*time.Second), Type: "order.placed", Source: "shop",
	ReceivedAt: before(3*time.Minute + 12*time.Second),
}

// handlerDetail is what is known of a handler with claims of dead workers and lanes that wait.
func handlerDetail(messageID, failure string) ops.HandlerDetail {
	dead := ops.ClaimedCall{Status: ops.Status{MessageID: messageID, WorkerID: workerID}, Age: 40 * time.Second,
		Attempt: 2, Host: "app-1", PID: 4711, Dead: true, ReclaimedAt: now.Add(25 * time.Second)}
	alone := dead
	alone.ReclaimedAt = time.Time{}
	return ops.HandlerDetail{HandlerOverview: ops.HandlerOverview{HandlerKey: "orders.mail", Registered: true,
		Workers: 1, Obstacle: "circuit breaker open", Pending: ops.Count{N: 23}, Due: ops.Count{N: 4}, Waiting: ops.Count{N: 19},
		OldestDueAge: 5 * time.Minute, Processing: ops.Count{N: 2}, Orphaned: ops.Count{N: 2}, Poisoned: ops.Count{N: 2},
		Parked: ops.Count{N: 19}, ParkedBy: ops.Count{N: 2}}, At: now, Calls: []ops.ClaimedCall{dead, alone},
		Lanes: []ops.ParkedLane{{HeadMessageID: messageID, HeadNamespace: "orders", Poisoned: 2, Waiting: ops.Count{N: 19}}},
		Recent: ops.Recent{Messages: 10000, Capped: true, Statuses: 812, Hours: []ops.RecentHour{
			{From: before(20 * time.Minute), To: now, Completed: 812, PerMinute: 40.6, Poisoned: 1, Failed: 7,
				Median: 31 * time.Millisecond, P95: 2 * time.Second, Longest: 3 * time.Minute},
			{From: before(80 * time.Minute), To: before(20 * time.Minute)}}},
		Failures: []ops.FailureGroup{{Fingerprint: "3f1c9a7e", HandlerKey: "orders.mail", Error: failure, Poisoned: 2,
			FirstSeen: before(time.Hour), LastSeen: before(time.Minute)}},
		WorkersListing: []ops.Worker{{ID: workerID, Host: "app-1", PID: 4711, HandlerKeys: []string{"orders.mail"}, Alive: true,
			StartedAt: before(time.Hour), Reasons: []ops.HealthReason{{Code: "open_circuit", State: "degraded",
				HandlerKey: "orders.mail", Detail: "its circuit breaker is open since 12:00"}}}},
		Settings: &ops.HandlerSettings{Keys: []string{"orders.mail", "mail"}, Channel: "orders", Mode: "Inbox", Type: "*",
			Kind: "transactional", Timeout: time.Minute, MaxRetries: 5, Concurrency: 4, Ordered: true, BatchSize: 1, TxGroup: 1,
			BreakerFailures: 3, BreakerOpenFor: time.Minute}, SettingsDiffer: true}
}

func TestTablesForPeople(t *testing.T) {
	evilStatus := poisoned
	evilStatus.MessageID, evilStatus.Type, evilStatus.LastError = evil, "注文.確定", evil+evil
	waiting := ops.Status{ID: statusID, MessageID: "b", HandlerKey: "h", State: ops.StatePending, Waiting: true,
		ReceivedAt: before(26 * time.Hour)}
	retrying := ops.Status{ID: statusID, MessageID: "é", HandlerKey: "h", State: ops.StatePending, Failing: true,
		ErrorCount: 12, LastError: "x", ReceivedAt: before(time.Second)}
	overview := ops.Overview{
		Inbox: "orders", At: now, WorkersAlive: 2, Rejected: ops.Count{N: 3}, Gaps: ops.Count{},
		Handlers: []ops.HandlerOverview{
			{HandlerKey: "orders.invoice", Registered: true, Processing: ops.Count{N: 4}},
			{HandlerKey: "orders.mail", Registered: true, Pending: ops.Count{N: 10000, Capped: true}, Due: ops.Count{N: 9000},
				OldestDueAge: 3*time.Minute + 12*time.Second,
				Waiting:      ops.Count{N: 12}, Poisoned: ops.Count{N: 17}},
			{HandlerKey: "orders.old", Obstacle: "no living worker lists it", Pending: ops.Count{N: 1}, Due: ops.Count{N: 1},
				OldestDueAge: 50 * time.Hour},
			{HandlerKey: "orders.ship", Paused: true, Registered: true, Obstacle: "paused"},
		},
	}
	for name, write := range map[string]func(out *bytes.Buffer){
		"status": func(out *bytes.Buffer) { writeOverview(out, overview) },
		"status-unknown": func(out *bytes.Buffer) {
			unknown := ops.Count{Unknown: true}
			writeOverview(out, ops.Overview{Inbox: "orders", At: now, WorkersAlive: 1, Gaps: unknown, Reasons: []ops.HealthReason{
				{State: "degraded", Detail: "the backlog cannot be read"}}, Handlers: []ops.HandlerOverview{{HandlerKey: "orders.mail",
				Registered: true, Pending: unknown, Due: unknown, Waiting: unknown, Processing: unknown, Poisoned: unknown}}})
		},
		"status-empty": func(out *bytes.Buffer) { writeOverview(out, ops.Overview{At: now}) },
		"list": func(out *bytes.Buffer) {
			writeStatuses(out, []ops.Status{poisoned, evilStatus, waiting, retrying}, now, false)
		},
		"list-wide": func(out *bytes.Buffer) { writeStatuses(out, []ops.Status{poisoned, retrying}, now, true) },
		"failures": func(out *bytes.Buffer) {
			writeFailures(out, ops.Failures{Groups: []ops.FailureGroup{
				{Fingerprint: "3f1c9a7e", HandlerKey: "orders.mail", Error: "dial tcp ?: connect: connection refused", Poisoned: 17,
					Failing: 2, FirstSeen: before(26 * time.Hour), LastSeen: before(time.Minute)},
				{Fingerprint: "77aa0012", HandlerKey: "orders.ship", Error: evil, Failing: 1},
			}}, now, false)
		},
		"rejected": func(out *bytes.Buffer) {
			writeRejectedList(out, []ops.Rejected{{ID: statusID, Channel: "orders", Topic: "orders.v1", Partition: 3, Offset: 1234567,
				Size: 99, RejectedAt: before(time.Hour), Reason: "not JSON: invalid character '}'"}}, now, false)
		},
		"handlers": func(out *bytes.Buffer) {
			unknown := ops.Count{Unknown: true}
			writeHandlers(out, []ops.HandlerOverview{{HandlerKey: "orders.mail", Registered: true, Workers: 2, Paused: true,
				Obstacle: "paused"}, {HandlerKey: "orders.old", StoredOnly: true, Obstacle: "no living worker lists it"},
				{HandlerKey: "p", Paused: true, Obstacle: "paused; no living worker lists it"},
				{HandlerKey: "orders.ship", Workers: 1, Processing: ops.Count{N: 3}, Orphaned: ops.Count{N: 2}},
				{HandlerKey: "orders.bill", Workers: 1, Processing: unknown, Orphaned: unknown, Pending: unknown, Poisoned: unknown,
					Parked: unknown, ParkedBy: unknown}})
		},
		"handler": func(out *bytes.Buffer) {
			h := handlerDetail("7f9c2ba4", "dial tcp ?: connect: connection refused")
			h.Calls, h.Processing, h.Orphaned = h.Calls[:1], ops.Count{N: 1}, ops.Count{N: 1}
			writeHandler(out, h)
		},
		"handler-hostile": func(out *bytes.Buffer) { writeHandler(out, handlerDetail(evil, evil)) },
		"workers": func(out *bytes.Buffer) {
			workers := []ops.Worker{
				{ID: workerID, Host: "app-1", PID: 4711, HandlerKeys: []string{"orders.mail", "orders.ship"},
					StartedAt: before(50 * time.Hour), SilentFor: 2 * time.Second, Alive: true},
				{ID: workerID, Host: "app-4", PID: 7, HandlerKeys: []string{"orders.mail"},
					StartedAt: before(time.Hour), SilentFor: 3 * time.Second, Alive: true, Reasons: []ops.HealthReason{
						{Code: "halted_partition", State: "unhealthy", Channel: "orders", Detail: "orders.v1/3 is halted: " + evil},
						{Code: "open_circuit", State: "degraded", HandlerKey: "orders.mail", Detail: "its circuit breaker is open"}}},
				{ID: workerID, Host: evil, PID: 1, SilentFor: 4 * time.Minute},
				{ID: workerID, Host: "app-2", PID: 1, SilentFor: 4 * time.Minute, Stopped: true},
				{ID: workerID, Host: "app-3", PID: 1, SilentFor: 4 * time.Minute, Released: true, Reasons: []ops.HealthReason{{Detail: "once"}}},
			}
			writeWorkers(out, workers, now)
			writeReasons(out, workers)
		},
		"consumers": func(out *bytes.Buffer) {
			writeConsumers(out, []ops.Consumer{
				{Channel: "orders", Host: "app-1", PID: 4711, State: "running", Unlisted: 12, Partitions: []ops.ConsumedPartition{
					{Topic: "orders.v1", Partition: 3, State: "halted", Halted: true, Position: 1042, Committed: 1042, Lag: 17,
						Problem: "message \"7f9c\" is invalid: unrouted: there is no handler for its type",
						Request: &models.PartitionRequest{Decision: "skip", Actor: evil}},
					{Topic: "orders.v1", Partition: 10, State: "starting", Position: -1, Committed: 5, Lag: -1},
				}},
				{Channel: "payments", Host: "app-1", PID: 4711, State: "waiting", Lag: -1, Problem: "topics do not exist"},
			}, false, false)
		},
		"progress": func(out *bytes.Buffer) {
			topics := []ops.TopicProgress{
				{Channel: "orders", GroupID: "shop", Topic: evil, Partitions: 6, Unread: 2,
					Obstacle: "2 of its partitions have never been read to the end"},
				{Channel: "orders", GroupID: "shop", Topic: "orders.v0", Partitions: 6, CaughtUpAt: before(26 * time.Hour),
					DeclaredAt: before(25 * time.Hour), Removed: true,
					Obstacle: "it is read up to what it held at 2025-12-31T10:00:00Z, and no worker has declared it"},
				{Channel: "orders", GroupID: "shop", Topic: "orders.v1", Partitions: 12, CaughtUpAt: before(time.Minute)},
			}
			writeProgress(out, topics)
			writeObstacles(out, topics)
		},
		"locks": func(out *bytes.Buffer) {
			writeLeases(out, []ops.Lease{{Name: "cleanup", OwnerID: workerID, ExpiresIn: 21 * time.Second},
				{Name: "processor", OwnerID: workerID, ExpiresIn: -time.Hour}})
		},
		"gaps": func(out *bytes.Buffer) {
			writeGaps(out, []models.Gap{{FoundAt: now, Channel: "orders", Topic: "orders.v1", Partition: 1, FromOffset: 5,
				ToOffset: 900, Reason: "removed by the topic's retention"}})
		},
		"markers": func(out *bytes.Buffer) {
			writeMarkers(out, []models.Marker{{MessageID: "7f9c2ba4", HandlerKey: "orders.mail", Namespace: "orders.events",
				MessageType: "order.placed", ProcessedAt: before(time.Hour), ExpiresAt: now},
				{MessageID: "7f9c2ba4", HandlerKey: evil, ProcessedAt: now, ExpiresAt: now}})
		},
		"audit": func(out *bytes.Buffer) {
			writeAudit(out, []ops.AuditEntry{{OccurredAt: now, Actor: "alice@ops1", Action: ops.ActionRetry, Target: "status " +
				statusID, Detail: `{"message_id":"7f9c2ba4"}`},
				{OccurredAt: now, Actor: "bob", Action: ops.ActionView, Target: "message " + evil}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			write(&out)
			requireHarmless(t, out.String())
			golden(t, name, out.String())
		})
	}
}

func TestMessagesForPeople(t *testing.T) {
	m := ops.Message{
		ID: "7f9c2ba4", Transport: "kafka", Type: "order.placed", Source: "shop", ContentType: "application/json",
		ReceivedAt: before(3*time.Minute + 12*time.Second),
		Content:    []byte("{\"id\": 1,\n \"note\": \"" + evil + "\"}\n"), OrderingKey: []byte("customer 7"),
		TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", OriginalID: "6e",
		Properties: handler.Properties{Channel: "orders",
			Headers:    []handler.Header{{Key: "h", Value: []byte("x")}, {Key: evil, Value: []byte{0xff, 0x1b}}, {Key: "none"}},
			Attributes: map[string]string{"tenant": "a", "b": evil}, Kafka: &handler.KafkaCoordinates{Topic: "orders.v1",
				Partition: 3, Offset: 42, Timestamp: before(4 * time.Minute)}},
		Statuses: []ops.StatusDetail{
			{Status: poisoned, Lane: &ops.LanePlace{HeadStatusID: statusID, HeadMessageID: "7f9c2ba4",
				HeadState: ops.StatePoisoned}, Attempts: []ops.Attempt{
				{At: before(3 * time.Minute), ClaimedAt: before(3*time.Minute + time.Second), WorkerID: workerID, Error: evil},
				{At: before(2 * time.Minute), Retried: true},
				{At: before(time.Minute), ClaimedAt: before(time.Minute + 10*time.Second), Error: "dial tcp", Poisoned: true}}},
			{Status: ops.Status{ID: workerID, HandlerKey: "orders.ship", State: ops.StatePending, Waiting: true, CreatedAt: now},
				Lane: &ops.LanePlace{Ahead: ops.Count{N: 2}, HeadStatusID: statusID, HeadMessageID: "6e",
					HeadState: ops.StatePoisoned}},
			{Status: ops.Status{ID: workerID, HandlerKey: "orders.a", State: ops.StatePending,
				CreatedAt: before(90 * time.Second)}},
			{Status: ops.Status{ID: workerID, HandlerKey: "orders.b", State: ops.StatePending, Failing: true, ErrorCount: 1,
				CreatedAt: now, NextAttemptAt: now.Add(time.Minute)}},
			{Status: ops.Status{ID: workerID, HandlerKey: "orders.c", State: ops.StateProcessing, CreatedAt: now,
				ProcessingStartedAt: before(time.Second), WorkerID: workerID}},
			{Status: ops.Status{ID: workerID, HandlerKey: "orders.d", State: ops.StateCompleted, CreatedAt: now,
				CompletedAt: now}},
		},
	}
	for name, c := range map[string]struct {
		payload payloads
		content []byte
	}{
		"show":         {payloads{size: 40}, []byte{}},
		"show-payload": {payloads{show: true}, m.Content},
		"show-binary":  {payloads{show: true}, []byte{0xff, 0x1b, '[', '2', 'J'}},
		"show-empty":   {payloads{show: true}, []byte{}},
	} {
		t.Run(name, func(t *testing.T) {
			m.Content = c.content
			var out bytes.Buffer
			writeMessage(&out, m, &c.payload, now)
			requireHarmless(t, out.String())
			golden(t, name, out.String())
		})
	}
	t.Run("rejected", func(t *testing.T) {
		r := ops.RejectedRecord{Rejected: ops.Rejected{ID: statusID, Channel: "orders", Topic: "orders.v1", Reason: evil,
			RejectedAt: before(time.Hour), Timestamp: now},
			Headers: m.Properties.Headers, HeadersProblem: "unreadable"}
		var out bytes.Buffer
		writeRejected(&out, r, &payloads{}, now)
		requireHarmless(t, out.String())
		golden(t, "rejected-show", out.String())
	})
}

// TestJSONHasTheNamesOfTheAPIInSnakeCase proves contract 11: the JSON has the API's names, and times
// in RFC 3339 and UTC.
func TestJSONHasTheNamesOfTheAPIInSnakeCase(t *testing.T) {
	east := time.FixedZone("east", 3600)
	status := poisoned
	status.ReceivedAt = status.ReceivedAt.In(east)
	status.MessageID = evil
	var out bytes.Buffer
	require.NoError(t, writeJSON(&out, struct {
		Page     ops.Page[ops.Status]
		Empty    ops.Page[ops.Status]
		Detail   ops.StatusDetail
		Overview ops.Overview
		Bytes    [][]byte
		Hidden   hidden
		Deleted  handler.Deleted
		Map      map[string]string
		Astral   string
	}{
		Page:   ops.Page[ops.Status]{Items: []ops.Status{status}, Next: "abc", Scanned: 3},
		Detail: ops.StatusDetail{Status: status, Lane: &ops.LanePlace{}},
		Overview: ops.Overview{At: now, Handlers: []ops.HandlerOverview{{OldestDueAge: 1500 * time.Millisecond,
			Pending: ops.Count{N: 7}, Poisoned: ops.Count{N: 10000, Capped: true}}}},
		Bytes: [][]byte{nil, {}, []byte("<text>"), {0xff}}, Hidden: hidden{Hidden: true, Size: 3},
		Map: map[string]string{"b": "<&>", "a": ""}, Astral: "\U000e0041😀",
	}))
	requireHarmless(t, out.String())
	golden(t, "json", out.String())
	var back struct {
		Page struct {
			Items []struct {
				MessageID string `json:"message_id"`
			}
		}
		Astral string
	}
	result{t: t, out: out.String()}.json(&back)
	require.Equal(t, evil, back.Page.Items[0].MessageID)
	require.Equal(t, "\U000e0041😀", back.Astral)
}
