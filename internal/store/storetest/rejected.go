package storetest

import (
	"bytes"
	"errors"
	"strings"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// keep stores rejected messages and returns their IDs.
func (s *suite) keep(rejected ...models.RejectedMessage) []string {
	s.Helper()
	ids := make([]string, len(rejected))
	for i := range rejected {
		ids[i] = uuid.Must(uuid.NewV7()).String()
		rejected[i].ID = ids[i]
	}
	_, err := s.store.Accept(s.ctx, store.AcceptBatch{Rejected: rejected, Now: noon})
	require.NoError(s, err)
	return ids
}

func one(messages ...store.NewMessage) store.AcceptBatch {
	return store.AcceptBatch{Messages: messages, Now: noon}
}

var rejectedTests = []test{
	{"a rejected message is loaded as it was stored, empty distinct from missing", func(s *suite) {
		var rejected []models.RejectedMessage
		for i, content := range [][2][]byte{{nil, nil}, {{}, {}}, {nil, {}}, {{}, nil},
			{{0, 0xff}, bytes.Repeat([]byte{0}, 100_000)}} {
			r := *rejection(int64(i))
			r.Key, r.Value, r.Headers, r.RejectedAt = content[0], content[1], `[{"k":"é"}]`, noon
			rejected = append(rejected, r)
		}
		for i, id := range s.keep(rejected...) {
			loaded, err := s.store.LoadRejected(s.ctx, id)
			require.NoError(s, err)
			require.Equal(s, rejected[i], loaded)
		}
	}},
	{"an unknown rejected message is reported as gone", func(s *suite) {
		_, err := s.store.LoadRejected(s.ctx, uuid.NewString())
		require.ErrorIs(s, err, store.ErrRejectedGone)
		_, err = s.store.AcceptRejected(s.ctx, uuid.NewString(), one(message("m1", "mail")))
		require.ErrorIs(s, err, store.ErrRejectedGone)
		require.Empty(s, s.messageIDs(), "nothing is stored for it")
		require.NoError(s, s.store.SetRejectedReason(s.ctx, uuid.NewString(), "bad", nil))
		audit := &models.Audit{ID: uuid.NewString(), Actor: "a", Action: "re_accept", OccurredAt: noon}
		require.ErrorIs(s, s.store.SetRejectedReason(s.ctx, uuid.NewString(), "bad", audit), store.ErrRejectedGone)
		var noted int64
		require.NoError(s, s.db.Model(&models.Audit{}).Count(&noted).Error)
		require.Zero(s, noted, "nothing done is nothing to note")
	}},
	{"accepting a rejected message stores its messages and deletes its row, and no other", func(s *suite) {
		s.accept(message("m2", "mail"))
		ids := s.keep(*rejection(1), *rejection(2))
		accepted, err := s.store.AcceptRejected(s.ctx, ids[0], one(message("m1", "mail", "stock"), message("m2", "mail")))
		require.NoError(s, err)
		require.Equal(s, []store.Accepted{{Inserted: true, StatusesAdded: 2}, {}}, accepted)
		require.Equal(s, []string{"m2/mail", "m1/mail", "m1/stock"}, pairs(s.statuses()))
		_, err = s.store.LoadRejected(s.ctx, ids[0])
		require.ErrorIs(s, err, store.ErrRejectedGone)
		_, err = s.store.LoadRejected(s.ctx, ids[1])
		require.NoError(s, err)
	}},
	{"a conflict leaves the row and stores nothing", func(s *suite) {
		s.accept(message("m2", "mail"))
		ids := s.keep(*rejection(1))
		other := message("m2", "mail")
		other.Source = "/other"
		accepted, err := s.store.AcceptRejected(s.ctx, ids[0], one(message("m1", "mail"), other))
		require.NoError(s, err)
		require.True(s, accepted[1].Conflict)
		require.Equal(s, "/shop", accepted[1].StoredSource)
		require.Equal(s, []string{"m2/mail"}, pairs(s.statuses()))
		require.EqualValues(s, 1, s.rejectedCount())
	}},
	{"a message that cannot be stored leaves the row", func(s *suite) {
		ids := s.keep(*rejection(1))
		unstorable := message("m1", "mail")
		unstorable.Type = "\xff"
		_, err := s.store.AcceptRejected(s.ctx, ids[0], one(unstorable))
		require.True(s, store.IsData(err))
		require.EqualValues(s, 1, s.rejectedCount())
		require.Empty(s, s.messageIDs())
	}},
	{"a new reason replaces the old one and is sanitized", func(s *suite) {
		ids := s.keep(*rejection(1))
		require.NoError(s, s.store.SetRejectedReason(s.ctx, ids[0], "still \x00\xff bad", nil))
		loaded, err := s.store.LoadRejected(s.ctx, ids[0])
		require.NoError(s, err)
		require.Equal(s, "still �� bad", loaded.Reason)
	}},
	{"a reason that stays the same is noted like another one", func(s *suite) {
		ids := s.keep(*rejection(1))
		for range 2 {
			audit := &models.Audit{ID: uuid.NewString(), Actor: "a", Action: "re_accept", OccurredAt: noon}
			require.NoError(s, s.store.SetRejectedReason(s.ctx, ids[0], "still bad", audit))
			requested, err := s.store.RequestReAccept(s.ctx, s.poolOf(s.db), ids[0], "a", noon)
			require.NoError(s, err)
			require.True(s, requested)
			paused, err := s.store.PauseKey(s.ctx, s.poolOf(s.db), "mail", noon)
			require.NoError(s, err)
			require.True(s, paused)
		}
		var noted int64
		require.NoError(s, s.db.Model(&models.Audit{}).Count(&noted).Error)
		require.EqualValues(s, 2, noted)
	}},
}

var rejectedRaceTests = []test{
	{"one of several concurrent re-accepts wins, the others change nothing", func(s *suite) {
		ids := s.keep(*rejection(1))
		errs := racetest.Together(20, func(int) error {
			_, err := s.store.AcceptRejected(s.ctx, ids[0], one(message("m1", "mail", "stock")))
			return err
		})
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else {
				require.True(s, errors.Is(err, store.ErrRejectedGone), err)
			}
		}
		require.Equal(s, 1, won)
		require.Equal(s, []string{"m1/mail", "m1/stock"}, pairs(s.statuses()))
		require.Zero(s, s.rejectedCount())
	}},
	{"accepting a rejected message during redeliveries neither deadlocks nor doubles", func(s *suite) {
		ids := s.keep(*rejection(1))
		s.noErrors(racetest.Together(20, func(i int) error {
			if i == 0 {
				_, err := s.store.AcceptRejected(s.ctx, ids[0], one(message("m1", "mail")))
				return err
			}
			batch := one(message("m1", "mail"))
			if i%2 == 0 { // by a worker that takes it for bad
				batch = store.AcceptBatch{Rejected: []models.RejectedMessage{*rejection(1)}, Now: noon}
			}
			_, err := s.store.Accept(s.ctx, batch)
			return err
		}))
		require.Equal(s, []string{"m1/mail"}, pairs(s.statuses()))
	}},
}

var gapTests = []test{
	{"a gap is stored once for any reason", func(s *suite) {
		keep := func(change func(*models.Gap)) bool {
			gap := models.Gap{ID: uuid.NewString(), Channel: "c", Topic: strings.Repeat("t", 249), Partition: 3,
				FromOffset: 1 << 40, ToOffset: 0,
				Reason: "gone \x00\xff " + strings.Repeat("x", 3000), FoundAt: noon}
			if change != nil {
				change(&gap)
			}
			added, err := s.store.KeepGap(s.ctx, gap)
			require.NoError(s, err)
			return added
		}
		require.True(s, keep(nil))
		require.False(s, keep(nil))
		for _, other := range []func(*models.Gap){
			func(g *models.Gap) { g.Channel = "d" }, func(g *models.Gap) { g.Topic = "t" },
			func(g *models.Gap) { g.Partition = 4 },
			func(g *models.Gap) { g.FromOffset = 5 }, func(g *models.Gap) { g.ToOffset = 7 },
		} {
			require.True(s, keep(other))
		}
		var gaps []models.Gap
		require.NoError(s, s.db.Find(&gaps).Error)
		require.Len(s, gaps, 6)
		for _, g := range gaps {
			require.Len(s, []rune(g.Reason), columns.MaxLastError)
			require.True(s, g.FoundAt.Equal(noon))
		}
	}},
}
