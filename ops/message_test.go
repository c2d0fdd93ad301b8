package ops_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
	"github.com/gorm-inbox/inbox/redact"
)

const trace = "4bf92f3577b34da6a3ce929d0e0e4736"

func letter() handler.RawMessage {
	return handler.RawMessage{Channel: "c", Type: "t", ID: "1", Source: "/shop", ContentType: "application/json",
		Content: []byte(`{"iban":"DE89"}`), Transport: "kafka",
		OrderingKey: []byte("customer-7"), Properties: handler.Properties{
			Headers: []handler.Header{{Key: "traceparent", Value: []byte("00-" + trace + "-00f067aa0ba902b7-01")},
				{Key: "token", Value: []byte("secret")}, {Key: "none"}, {Key: "bin", Value: []byte{0xff, 0}}},
			Attributes: map[string]string{"subject": "secret subject"},
			Kafka: &handler.KafkaCoordinates{Topic: "orders", Partition: 3, Offset: 99, Timestamp: inboxtest.Noon,
				Key: []byte("customer-7")}}}
}

// On each dialect an empty payload is one, and not none: drivers differ in how they read an empty blob.
func TestEmptyPayloadIsNotNil(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		sent := letter()
		sent.Content = nil
		_, err := r.ib.Accept(t.Context(), sent)
		require.NoError(t, err)
		m, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
		require.NoError(t, err)
		require.Equal(t, []byte{}, m.Content)
	})
}

// TestMessageShowsEverythingAndIsAudited proves contract 11.1, 11.3.
func TestMessageShowsEverythingAndIsAudited(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no such order 17", "1")
		r.clock.Advance(time.Second)
		_, err := r.ib.Accept(t.Context(), letter())
		require.NoError(t, err)
		r.process()
		m, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
		require.NoError(t, err)
		sent := letter()
		require.Equal(t, sent.Content, m.Content)
		require.Equal(t, sent.OrderingKey, m.OrderingKey)
		require.Equal(t, sent.Properties.Headers, m.Properties.Headers)
		require.Equal(t, sent.Properties.Attributes, m.Properties.Attributes)
		require.Equal(t, sent.Properties.Kafka, m.Properties.Kafka)
		require.Equal(t, "c", m.Properties.Channel)
		require.Equal(t, []string{"1", "t", "/shop", "application/json", "kafka", trace, "", ""},
			[]string{m.ID, m.Type, m.Source, m.ContentType, m.Transport, m.TraceID, m.OriginalID, m.PropertiesProblem})
		require.True(t, r.clock.Now().Equal(m.ReceivedAt))
		require.Len(t, m.Statuses, 2)
		mail, ship := m.Statuses[0], m.Statuses[1]
		require.Equal(t, []any{"mail", ops.StatePoisoned, "poison: no such order 17", 1},
			[]any{mail.HandlerKey, mail.State, mail.LastError, mail.ErrorCount})
		require.Equal(t, []any{"ship", ops.StateCompleted, ""}, []any{ship.HandlerKey, ship.State, ship.LastError})
		require.NotEmpty(t, mail.Fingerprint)
		require.Nil(t, mail.Lane)
		require.Equal(t, []string{"ada view message 1"}, r.audit())

		_, err = r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "2"})
		require.ErrorIs(t, err, ops.ErrNotFound)
		require.Len(t, r.audit(), 1, "nothing was shown")

		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_messages SET serialized_properties = '{', ordering_key = NULL`)
		m, err = r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
		require.NoError(t, err)
		require.Contains(t, m.PropertiesProblem, "unreadable")
		require.Nil(t, m.OrderingKey)
		require.Equal(t, sent.Content, m.Content)
	})
}

// TestMessageShowsItsAttemptsAndRetries proves contract 5.5, 11.1.
func TestMessageShowsItsAttemptsAndRetries(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, redactBy(func(v redact.Value) []byte { return bytes.ReplaceAll(v.Bytes, []byte("secret"), []byte("***")) }))
		r.fail("mail", "1", errors.New("a secret"))
		r.accept("1")
		r.process()
		failed := r.clock.Now()
		r.clock.Advance(time.Hour)
		r.poison("mail", strings.Repeat("é", 400), "1") // a word that is cut might be half of a secret
		r.process()
		poisoned := r.clock.Now()
		shown := func() ops.StatusDetail {
			m, err := r.ops.PreviewMessage(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.PreviewBounds{})
			require.NoError(t, err)
			require.Empty(t, m.Statuses[1].Attempts, "the other handler never failed")
			return m.Statuses[0]
		}
		s := shown()
		require.Equal(t, poisoned, s.PoisonedAt)
		require.Len(t, s.Attempts, 2)
		require.Equal(t, ops.Attempt{At: failed, ClaimedAt: failed, Error: "a ***"}, s.Attempts[0])
		require.Equal(t, ops.Attempt{At: poisoned, ClaimedAt: poisoned, Poisoned: true,
			Error: "poison: …"}, s.Attempts[1])

		r.clock.Advance(time.Hour)
		require.NoError(t, r.ops.Retry(t.Context(), ada, s.Ref()))
		s = shown()
		require.Zero(t, s.PoisonedAt)
		require.Equal(t, ops.Attempt{At: r.clock.Now(), Retried: true}, s.Attempts[2])
		page, err := r.ops.List(t.Context(), ops.Filter{MessageID: "1", HandlerKeys: []string{"mail"}}, "", 0)
		require.NoError(t, err)
		require.Equal(t, s.Status, page.Items[0])
	})
}

func TestMessageShowsItsPositionInItsLane(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil, handler.Ordered())
		r.poison("mail", "no", "head")
		r.fail("ship", "head", errors.New("boom"))
		for _, id := range []string{"head", "second", "third"} {
			m := inboxtest.Message(id)
			m.OrderingKey = []byte("lane")
			_, err := r.ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		r.process()
		m, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "third"})
		require.NoError(t, err)
		for i, expected := range []ops.State{ops.StatePoisoned, ops.StatePending} {
			lane := m.Statuses[i].Lane
			require.NotNil(t, lane)
			require.Equal(t, ops.Count{N: 2}, lane.Ahead)
			require.Equal(t, "head", lane.HeadMessageID)
			require.Equal(t, expected, lane.HeadState)
		}
		m, err = r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "head"})
		require.NoError(t, err)
		require.Equal(t, ops.LanePlace{HeadMessageID: "head", HeadNamespace: "c", HeadStatusID: m.Statuses[0].ID,
			HeadState: ops.StatePoisoned}, *m.Statuses[0].Lane)
	})
}

// TestRedactionHookSeesAllShownText proves contract 11.4: payload, headers and errors are
// shown and searched only after the hook has redacted them.
func TestRedactionHookSeesAllShownText(t *testing.T) {
	hide := func(v redact.Value) []byte {
		switch {
		case v.Name == "none":
			return v.Bytes
		case v.Part == redact.PartError:
			return bytes.ReplaceAll(v.Bytes, []byte("secret"), []byte("***"))
		case v.Name == "bin":
			panic("hook")
		}
		return fmt.Appendf(nil, "%s %s %s of %s", v.Part, v.Name, v.Channel, v.MessageID)
	}
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, redactBy(hide))
		r.poison("mail", "no secret order", "1")
		_, err := r.ib.Accept(t.Context(), letter())
		require.NoError(t, err)
		r.process()
		m, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
		require.NoError(t, err)
		require.Equal(t, "payload  c of 1", string(m.Content))
		require.Equal(t, "key  c of 1", string(m.OrderingKey))
		require.Equal(t, "key  c of 1", string(m.Properties.Kafka.Key))
		require.Equal(t, "attribute subject c of 1", m.Properties.Attributes["subject"])
		require.Equal(t, "header token c of 1", string(m.Properties.Headers[1].Value))
		require.Nil(t, m.Properties.Headers[2].Value)
		require.Equal(t, "[not shown: the redaction hook panicked]", string(m.Properties.Headers[3].Value))
		require.Equal(t, "poison: no *** order", m.Statuses[0].LastError)
		require.Equal(t, trace, m.TraceID, "an ID, for looking it up")

		require.Empty(t, r.list(ops.Filter{ErrorText: "secret"}, 10), "searching would tell")
		require.Equal(t, []string{"mail/1"}, r.list(ops.Filter{ErrorText: "***"}, 10))
		failures, err := r.ops.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.Equal(t, "poison: no *** order", failures.Groups[0].Error)
		require.Equal(t, "poison: no *** order", failures.Groups[0].Sample.LastError)
		require.Equal(t, m.Statuses[0].Fingerprint, failures.Groups[0].Fingerprint)

		id := r.reject(1, "a secret reason")
		page, err := r.ops.ListRejected(t.Context(), ops.RejectedFilter{}, "", 10)
		require.NoError(t, err)
		require.Equal(t, "a *** reason", page.Items[0].Reason)
		record, err := r.ops.Rejected(t.Context(), ada, id)
		require.NoError(t, err)
		require.Equal(t, "a *** reason", record.Reason)
		require.True(t, strings.HasPrefix(string(record.Value), "payload  c of "))
		require.True(t, strings.HasPrefix(string(record.Key), "key  c of "))
		require.True(t, strings.HasPrefix(string(record.Headers[0].Value), "header ce_specversion c of "))
		page, err = r.ops.ListRejected(t.Context(), ops.RejectedFilter{Reason: "secret"}, "", 10)
		require.NoError(t, err)
		require.Empty(t, page.Items)
	})
}

// Contract 11.6: no option of an Ops removes the inbox's hook, or sees what that hides.
func TestInboxHookRunsBeforeTheOpsHook(t *testing.T) {
	replacing := func(old, with string) redact.Hook {
		return func(v redact.Value) []byte { return bytes.ReplaceAll(v.Bytes, []byte(old), []byte(with)) }
	}
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inbox.Configure(func(o *inbox.Options) { o.Redact = replacing("secret", "hidden") }),
			inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		inboxtest.Accept(t, ib, "secret")
		for _, c := range []struct {
			configure func(*ops.Options)
			shown     string
		}{
			{nil, "hidden"},
			{redactBy(nil), "hidden"},
			{redactBy(replacing("hidden", "HIDDEN")), "HIDDEN"},
			{redactBy(replacing("secret", "seen")), "hidden"},
		} {
			o, err := ib.Ops(c.configure)
			require.NoError(t, err)
			m, err := o.Message(t.Context(), ada, ops.MessageRef{ID: "secret"})
			require.NoError(t, err)
			require.Equal(t, c.shown, string(m.Content))
		}
	})
}

// TestNewReasonOfABadRecordIsRedacted proves contract 11.4: why a record is still bad is an error's
// text, too.
func TestNewReasonOfABadRecordIsRedacted(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, redactBy(func(v redact.Value) []byte { return append([]byte("of "), v.Part...) }))
		bad := r.reject(1, "old", func(m *models.RejectedMessage) { m.Headers = "[]" })
		_, err := r.ops.ReAccept(t.Context(), ada, bad)
		var still *handler.StillBadError
		require.ErrorAs(t, err, &still)
		require.EqualError(t, err, fmt.Sprintf("re_accept rejected message %s: rejected message %q is still bad: of error",
			bad, bad))
		require.EqualError(t, still.Err, "of error")
	})
}

// TestNewReasonOfABadRecordIsNotShownUnaudited proves contract 11.3, 11.4.
func TestNewReasonOfABadRecordIsNotShownUnaudited(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var channels []string
		hook := redactBy(func(v redact.Value) []byte {
			if v.Part == redact.PartError {
				channels = append(channels, v.Channel)
			}
			return v.Bytes
		})
		redacting, plain := newRig(t, d, hook), newRig(t, d, nil)
		bad := redacting.reject(1, "old", func(m *models.RejectedMessage) { m.Headers = "[]" })
		for _, r := range []*rig{redacting, plain} { // both have found their tables
			_, err := r.ops.ReAccept(t.Context(), ada, bad)
			require.ErrorAs(t, err, new(*handler.StillBadError))
		}
		require.Equal(t, []string{"c"}, channels)
		inboxtest.Exec(t, d.DB, `ALTER TABLE inbox_audit RENAME TO elsewhere`)
		for _, r := range []*rig{redacting, plain} {
			_, err := r.ops.ReAccept(t.Context(), ada, bad)
			require.ErrorIs(t, err, ops.ErrNotAudited)
			require.False(t, errors.As(err, new(*handler.StillBadError)))
			require.NotContains(t, err.Error(), "still bad")
		}
	})
}

// TestFailuresWithoutAShownErrorAreAGroup proves that poisoned statuses are shown and can be acted
// on even if the hook hides all errors.
func TestFailuresWithoutAShownErrorAreAGroup(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, redactBy(func(redact.Value) []byte { return nil }))
		r.poison("mail", "no", "1", "2")
		r.poison("ship", "no", "2")
		r.accept("1", "2", "3")
		r.process()
		failures, err := r.ops.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.Len(t, failures.Groups, 2)
		group := failures.Groups[0]
		require.Equal(t, "mail", group.HandlerKey)
		require.Empty(t, group.Error)
		require.EqualValues(t, 2, group.Poisoned)
		require.Equal(t, group.Fingerprint, group.Sample.Fingerprint)
		result, err := r.ops.DiscardMatching(t.Context(), ada, ops.Filter{Fingerprint: group.Fingerprint}, ops.Bulk{})
		require.NoError(t, err)
		require.EqualValues(t, 2, result.Done)
		require.Equal(t, []string{"ship/2"}, r.list(ops.Filter{States: []ops.State{ops.StatePoisoned}}, 10))
	})
}

// TestFilterTextIsRedactedInTheAudit proves contract 11.6: an operator's search for a card
// number is not stored.
func TestFilterTextIsRedactedInTheAudit(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, redactBy(redact.Common))
		filter := ops.Filter{HandlerKeys: []string{"mail"}, ErrorText: "card 4111 1111 1111 1111"}
		for _, bulk := range []ops.Bulk{{DryRun: true}, {}} {
			_, err := r.ops.RetryMatching(t.Context(), ada, filter, bulk)
			require.NoError(t, err)
		}
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{}, "", ops.MaxLimit)
		require.NoError(t, err)
		require.Len(t, page.Items, 2)
		for _, entry := range page.Items {
			require.Contains(t, entry.Detail, "card [redacted]")
			require.NotContains(t, entry.Detail, "1111")
		}
	})
}
