package acceptor_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/sealing"
	"github.com/gorm-inbox/inbox/models"
)

func sealBy(box *inboxtest.Box) func(cfg *acceptor.Config) {
	return func(cfg *acceptor.Config) { cfg.Sealer = sealing.New(box, inboxtest.Patience) }
}

// requireSealed requires that a rejected row has no plain value, and its headers as they came.
func requireSealed(t *testing.T, row models.RejectedMessage, keyID string) {
	t.Helper()
	require.NotEqual(t, "raw", string(row.Value))
	_, seal := properties.SealOfRejected(row.Headers)
	require.Equal(t, properties.Seal{Key: keyID}, seal)
	headers, err := properties.ParseHeaders(row.Headers)
	require.NoError(t, err)
	require.Equal(t, []handler.Header{{Key: "h", Value: []byte{0xfe}}}, headers)
}

// Contract 15: also the records of messages that only the database finds to be conflicts.
func TestRejectedRecordsAreKeptSealed(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("k1")
		r := receiveBy(t, d, func(cfg *acceptor.Config) {
			sealBy(box)(cfg)
			cfg.Options.DifferingContent = acceptor.DifferingContentReject
		})
		require.Equal(t, "durable, durable bad", dispositions(r.accept(at(0, "m"), bad(1, errMangled))))
		other, source := at(2, "m"), at(3, "m")
		other.Messages[0].Content, source.Messages[0].Source = []byte("other"), "/elsewhere"
		require.Equal(t, "durable bad, durable, durable bad", dispositions(r.accept(other, at(4, "n"), source)))
		rows := r.rejected()
		require.Len(t, rows, 3)
		for _, row := range rows {
			requireSealed(t, row, "k1")
		}
		require.Contains(t, rows[1].Reason, "content_differs")
		require.Contains(t, rows[2].Reason, "id_conflict")
		require.Equal(t, []string{"m", "n"}, r.messages())
	})
}

// Contract 15: a message that can never be sealed is bad; its record must be kept all the same.
func TestRecordWithAMessageThatCannotBeSealedIsBad(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("k1")
		r := receiveBy(t, d, sealBy(box))
		down := errors.New("key server is down")
		box.Fail(func(of handler.Identity) error {
			switch of.ID {
			case "never":
				return handler.Poison(errors.New("too secret"))
			case "down":
				return down
			}
			return nil
		}, nil)
		require.Equal(t, "durable bad, durable", dispositions(r.accept(at(0, "never"), at(1, "m"))))
		require.Contains(t, r.rejected()[0].Reason, "not_sealed: seal content: poison: too secret")
		requireSealed(t, r.rejected()[0], "k1")

		_, err := r.AcceptRecords(t.Context(), "c", []envelope.Received{at(2, "down"), at(3, "n")})
		require.ErrorIs(t, err, down)
		box.Fail(func(handler.Identity) error { return down }, nil)
		_, err = r.AcceptRecords(t.Context(), "c", []envelope.Received{bad(4, errMangled)})
		require.ErrorIs(t, err, down)
		require.ErrorContains(t, err, "record to keep as rejected, of topic/0 at offset 4")
		require.Equal(t, []string{"m"}, r.messages())
		require.Len(t, r.rejected(), 1)
	})
}

// choosy is a Sealer that refuses contents, not messages.
type choosy struct{ *inboxtest.Box }

func (c choosy) Seal(ctx context.Context, of handler.Identity, content []byte) ([]byte, string, error) {
	if bytes.Contains(content, []byte("unsealable")) {
		return nil, "", handler.Poison(errors.New("forbidden bytes"))
	}
	return c.Box.Seal(ctx, of, content)
}

// Contract 15: a value that can never be sealed is not kept, and holds up neither its partition nor another one.
func TestRecordWhoseValueCanNeverBeSealedIsKeptWithoutIt(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		for i, policy := range []acceptor.BadRecordPolicy{acceptor.BadRecordStore, acceptor.BadRecordHalt} {
			r := receiveBy(t, d, func(cfg *acceptor.Config) {
				cfg.Sealer = sealing.New(choosy{inboxtest.NewBox("k1")}, inboxtest.Patience)
				cfg.Options.BadRecords = policy
			})
			never := at(int64(2*i), fmt.Sprint("never-", i))
			never.Record.Value, never.Messages[0].Content = []byte("unsealable record"), []byte("unsealable")
			elsewhere := at(0, fmt.Sprint("elsewhere-", i))
			elsewhere.Record.Partition = 7
			results := r.accept(never, at(int64(2*i+1), fmt.Sprint("after-", i)), elsewhere)
			require.Contains(t, r.messages(), elsewhere.Messages[0].ID)
			if policy == acceptor.BadRecordStore {
				require.Equal(t, "durable bad, durable, durable", dispositions(results))
			} else {
				require.Equal(t, "halt bad, halt bad, durable", dispositions(results))
				require.True(t, results[0].Skippable)
				never.Err = results[0].Err
				disposition, err := r.CarryOut(t.Context(), r.requestSkip(never.Record), &never, nil)
				require.NoError(t, err)
				require.Equal(t, envelope.Durable, disposition)
			}
			row := r.rejected()[0]
			require.Nil(t, row.Value)
			require.Equal(t, never.Record.Key, row.Key)
			require.Contains(t, row.Reason, "not_sealed")
			require.Contains(t, row.Reason, "its value is not kept: seal content: poison: forbidden bytes")
			_, err := properties.ParseHeaders(row.Headers)
			require.Equal(t, &properties.CutError{KeyBytes: 2, ValueBytes: len(never.Record.Value), HeadersBytes: 2,
				SHA256: fmt.Sprintf("%x", sha256.Sum256(never.Record.Value))}, err)
			_, err = r.AcceptRejected(t.Context(), row.ID)
			require.ErrorContains(t, err, "cannot be accepted again")
			require.NoError(t, r.db.Delete(&row).Error)
		}
	})
}

// refused is an error that a Sealer's own database might return: it says nothing of the record.
type refused struct{}

func (refused) Error() string    { return "value too long" }
func (refused) SQLState() string { return "22001" }

// Contract 15: the record of a message whose Sealer fails is tried again, whatever the error is.
func TestErrorOfTheSealersDatabaseMakesNoRecordBad(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("k1")
		r := receiveBy(t, d, sealBy(box))
		box.Fail(func(handler.Identity) error { return refused{} }, nil)
		_, err := r.AcceptRecords(t.Context(), "c", []envelope.Received{at(0, "m"), at(1, "n")})
		require.ErrorContains(t, err, "value too long")
		require.Empty(t, r.rejected())
		box.Fail(nil, nil)
		require.Equal(t, "durable, durable", dispositions(r.accept(at(0, "m"), at(1, "n"))))
	})
}

// Contract 7.4 and 15.
func TestSealedRejectedRecordIsAcceptedAgain(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		box := inboxtest.NewBox("k1")
		m := newRepairable(t, d, sealBy(box))
		id := m.reject(at(1).Record)
		unread := at(2).Record
		unread.Headers, unread.RawHeaders = nil, []byte("\x02\x02a\x02\xff")
		unreadID := m.reject(unread)
		requireSealed(t, m.rejected()[0], "k1")

		m.repair("1")
		down := errors.New("key server is down")
		box.Fail(nil, func(handler.Identity, string) error { return down })
		_, err := m.AcceptRejected(t.Context(), id)
		require.ErrorIs(t, err, down)
		require.NotErrorAs(t, err, new(*handler.StillBadError))
		box.Fail(nil, func(handler.Identity, string) error { return handler.Poison(errors.New("no such key")) })
		_, err = m.AcceptRejected(t.Context(), id)
		require.ErrorAs(t, err, new(*handler.StillBadError))
		require.Contains(t, m.rejected()[0].Reason, "no such key")

		box.Fail(nil, nil)
		_, err = m.AcceptRejected(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "raw", string(m.seen.Value))
		m.repair("2")
		_, err = m.AcceptRejected(t.Context(), unreadID)
		require.NoError(t, err)
		require.Equal(t, "raw", string(m.seen.Value))
		require.Equal(t, []handler.Header{{Key: "a", Value: []byte("\xff")}}, m.seen.Headers)
		require.Empty(t, m.rejected())
		var stored models.Message
		require.NoError(t, d.DB.First(&stored, "id = ?", "1").Error)
		require.Contains(t, stored.SerializedProperties, `"sealed":{"key":"k1"`)
	})
}
