package storetest

import (
	"bytes"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/properties"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

var acceptTests = []test{
	{"a status is found by its message's ID, comes with its message and goes with it", func(s *suite) {
		s.accept(message("m1", "mail", "stock"), message("m2", "mail"))
		db := s.db.WithContext(s.ctx)
		var found []models.HandlerStatus
		require.NoError(s, db.Preload("Message").Joins("JOIN inbox_messages m ON m.number = message_number").Where("m.id = ?",
			"m1").Order("handler_key").Find(&found).Error)
		require.Equal(s, []string{"m1/mail", "m1/stock"}, pairs(found))
		for _, row := range found {
			require.Equal(s, "m1", row.Message.ID)
			require.EqualValues(s, row.MessageNumber, row.Message.Number)
		}
		twin := found[0]
		twin.ID, twin.Message, twin.Sequence = uuid.NewString(), nil, 1000
		require.True(s, store.IsUniqueViolation(db.Create(&twin).Error), "one status per message and handler (3.2)")
		if s.isServer() { // SQLite obeys foreign keys where they are switched on
			require.NoError(s, db.Delete(&models.Message{ID: "m1", Namespace: "orders"}).Error)
			require.Equal(s, []string{"m2/mail"}, pairs(s.statuses()))
		}
	}},
	{"a dry run stores nothing, and returns what an accept would", func(s *suite) {
		s.accept(message("m1", "mail"))
		conflicting := message("m2", "mail")
		s.accept(conflicting)
		conflicting.Type = "another"
		batch := store.AcceptBatch{Messages: []store.NewMessage{message("m1", "mail", "stock"),
			message("m3", "mail", "stock"), conflicting}, Rejected: []models.RejectedMessage{*rejection(1)}, Now: noon, DryRun: true}
		want := []store.Accepted{{StatusesAdded: 1}, {Inserted: true, StatusesAdded: 2}, {Conflict: true,
			StoredType: message("m2").Type, StoredSource: conflicting.Source}}
		for range 2 {
			would, err := s.store.Accept(s.ctx, batch)
			require.NoError(s, err)
			require.Equal(s, want, would)
			require.Equal(s, []string{"m1/mail", "m2/mail"}, pairs(s.statuses()))
			require.Zero(s, s.rejectedCount())
		}
		batch.DryRun = false
		did, err := s.store.Accept(s.ctx, batch)
		require.NoError(s, err)
		require.Equal(s, want, did)
	}},
	{"the number of a deleted message is not reused", func(s *suite) {
		last := int64(0)
		for _, m := range []store.NewMessage{message("m1", "mail"), message("m2"), message("m3", "mail"), message("m4")} {
			s.accept(m)
			number := s.numbers(m.ID)[0]
			require.Greater(s, number, last, m.ID)
			last = number
			require.NoError(s, s.db.Exec("DELETE FROM inbox_handler_statuses").Error)
			require.NoError(s, s.db.Exec("DELETE FROM inbox_messages").Error)
		}
	}},
	{"messages created by GORM and accepted ones share their numbers and sequences", func(s *suite) {
		if s.partitioned() && !s.server.CreatesInPartitions() {
			s.Log("no row is created in partitions, whose numbers are those of the table of IDs")
			return
		}
		s.accept(message("m1", "mail"))
		created := message("m2").Message
		created.ReceivedAt = noon
		require.NoError(s, s.db.Create(&created).Error)
		if created.Number == 0 { // MySQL returns nothing of an INSERT
			require.NoError(s, s.db.Take(&created).Error)
		}
		status := models.HandlerStatus{ID: uuid.NewString(), MessageID: "m2", MessageNumber: int64(created.Number),
			HandlerKey: "mail", CreatedAt: noon}
		require.NoError(s, s.db.Create(&status).Error)
		s.accept(message("m3", "mail"))
		require.Equal(s, []string{"m1/mail", "m2/mail", "m3/mail"}, pairs(s.statuses()))
		require.IsIncreasing(s, s.numbers("m1", "m2", "m3"))
	}},
	{"a new message and one status per handler are stored as given", func(s *suite) {
		m := message("m1", "mail", "stock")
		m.OrderingKey, m.Content = []byte{0, 0xff}, []byte{0, 1, 0xfe}
		require.Equal(s, []store.Accepted{{Inserted: true, StatusesAdded: 2}}, s.accept(m))

		var stored models.Message
		require.NoError(s, s.db.Take(&stored, "id = ?", "m1").Error)
		stored.ReceivedAt = stored.ReceivedAt.UTC()
		require.Positive(s, stored.Number)
		expected := m.Message
		expected.Number, expected.ReceivedAt = stored.Number, noon
		require.Equal(s, expected, stored)

		rows := s.statuses()
		require.Equal(s, []string{"m1/mail", "m1/stock"}, pairs(rows))
		for _, row := range rows {
			require.EqualValues(s, stored.Number, row.MessageNumber)
			require.Equal(s, noon, row.CreatedAt.UTC())
			require.EqualValues(s, 1, row.Version)
			require.Equal(s, uuid.Version(7), uuid.MustParse(row.ID).Version())
			require.Zero(s, row.ErrorCount+row.AbandonedCount+row.RequeuedCount)
			require.False(s, row.IsPoisoned)
			require.Nil(s, row.ProcessingStartedAt)
			require.Nil(s, row.NextAttemptAt)
			require.Nil(s, row.CompletedAt)
			require.Nil(s, row.LastError)
			require.Empty(s, row.Outcome)
		}
	}},
	{"empty content and an empty or missing ordering key stay what they are", func(s *suite) {
		none, empty := message("none"), message("empty")
		none.Content, empty.Content, empty.OrderingKey = nil, []byte{}, []byte{}
		s.accept(none, empty)
		for _, m := range []*store.NewMessage{&none, &empty} {
			m.Handlers = []store.NewStatus{{HandlerKey: "mail"}}
		}
		s.accept(none, empty)
		claims := s.claim(noon, 10, "mail")
		require.Empty(s, claims[0].Message.Content)
		require.Nil(s, claims[0].Message.OrderingKey)
		require.Empty(s, claims[1].Message.Content)
		require.Equal(s, []byte{}, claims[1].Message.OrderingKey)
		require.False(s, s.accept(none)[0].ContentDiffers)
	}},
	{"empty contents among large ones stay empty", func(s *suite) {
		batch := []store.NewMessage{message("large", "mail"), message("none", "mail"), message("empty", "mail"),
			message("larger", "mail"), message("last")}
		batch[0].Content, batch[1].Content, batch[2].Content = bytes.Repeat([]byte{0, 0xff, 'a'}, 30<<10), nil, []byte{}
		batch[3].Content, batch[4].Content = bytes.Repeat([]byte("b"), 100<<10), nil
		s.accept(batch...)
		require.Equal(s, s.contentsOf(batch), s.contents())
		for _, again := range s.accept(batch...) {
			require.Equal(s, store.Accepted{}, again)
		}
	}},
	{"an empty batch stores nothing", func(s *suite) {
		require.Empty(s, s.accept())
	}},
	{"a duplicate adds nothing", func(s *suite) {
		s.accept(message("m1", "mail"), message("m2", "mail"))
		again := s.acceptAt(noon.Add(time.Hour), message("m2", "mail"), message("m3", "mail"), message("m1", "mail"))
		require.Equal(s, []store.Accepted{{}, {Inserted: true, StatusesAdded: 1}, {}}, again)
		require.Equal(s, []string{"m1/mail", "m2/mail", "m3/mail"}, pairs(s.statuses()))
	}},
	{"a duplicate with other content is reported and not stored", func(s *suite) {
		s.accept(message("m1", "mail"))
		other := message("m1", "mail")
		other.Content = []byte("other")
		require.Equal(s, []store.Accepted{{ContentDiffers: true}}, s.accept(other))
		var stored models.Message
		require.NoError(s, s.db.Take(&stored).Error)
		require.Equal(s, message("m1").Content, stored.Content)
	}},
	{"sealed contents are compared by the hash of what was sealed", func(s *suite) {
		// Each ID is stored plain or sealed, and comes again with each content in each form.
		for _, stored := range []bool{false, true} {
			id := map[bool]string{false: "plain", true: "sealed"}[stored]
			s.accept(sealedIf(stored, message(id, "mail"), "1"))
			for _, again := range []bool{false, true} {
				other := message(id, "mail")
				other.Content = []byte("other")
				same := s.accept(sealedIf(again, message(id, "mail"), "2"))
				require.Equal(s, []store.Accepted{{}}, same, "%t, %t", stored, again)
				differing := s.accept(sealedIf(again, other, "3"))
				require.Equal(s, []store.Accepted{{ContentDiffers: true}}, differing, "%t, %t", stored, again)
			}
		}
		// What is stored sealed may look like another plain content, or the same one.
		lookalike := message("sealed", "mail")
		lookalike.Content = []byte("sealed 1")
		require.Equal(s, []store.Accepted{{ContentDiffers: true}}, s.accept(lookalike))
	}},
	{"what looks like a seal among a message's attributes is none", func(s *suite) {
		forged := message("m1", "mail")
		forged.SerializedProperties = `{"attributes":{"sealed":"k1","sha256":"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="}}`
		s.accept(forged)
		require.Equal(s, []store.Accepted{{}}, s.accept(message("m1", "mail")))
	}},
	{"a known ID with another type or source is a conflict, and rejected if asked", func(s *suite) {
		s.accept(message("m1", "mail"))
		byType, bySource := message("m1", "mail", "new"), message("m1", "mail", "new")
		byType.Type, bySource.Source = "order.shipped", "/other"
		byType.Rejection = rejecting(5)
		conflict := store.Accepted{Conflict: true, StoredType: "order.placed", StoredSource: "/shop"}
		require.Equal(s, []store.Accepted{conflict}, s.accept(byType))
		require.Equal(s, []store.Accepted{conflict}, s.accept(bySource))
		require.Equal(s, []string{"m1/mail"}, pairs(s.statuses()))

		var rows []models.RejectedMessage
		require.NoError(s, s.db.Find(&rows).Error)
		require.Len(s, rows, 1)
		require.EqualValues(s, 5, rows[0].Offset)
		require.Contains(s, rows[0].Reason, "id_conflict")
		require.Contains(s, rows[0].Reason, "m1")
		require.Contains(s, rows[0].Reason, "order.placed")
		require.Contains(s, rows[0].Reason, "/shop")
	}},
	{"a rejection is not stored where there is no conflict", func(s *suite) {
		m := message("m1", "mail")
		m.Rejection = rejecting(5)
		s.accept(m)
		s.accept(m)
		require.Zero(s, s.rejectedCount())
	}},
	{"one ID in two namespaces is two messages, each with its own handlers and content", func(s *suite) {
		ours, theirs := message("m1", "transfer"), message("m1", "import")
		theirs.Namespace, theirs.Content, theirs.Source = "partners", []byte("forged"), "/elsewhere"
		later := message("m1", "transfer") // a handler of both
		later.Namespace = "partners"
		later.Content, later.Source = theirs.Content, theirs.Source
		s.accept(theirs)
		require.Equal(s, []store.Accepted{{Inserted: true, StatusesAdded: 1}}, s.accept(ours), "it is no duplicate")
		require.Equal(s, []store.Accepted{{StatusesAdded: 1}, {}}, s.accept(later, ours))
		for _, claim := range append(s.claim(noon, 5, "import"), s.claim(noon, 5, "transfer")...) {
			require.Equal(s, claim.Message.Namespace == "partners", string(claim.Message.Content) == "forged", claim)
		}
		require.Equal(s, []string{"m1/import", "m1/transfer", "m1/transfer"}, pairs(s.statuses()))
		siblings, err := s.store.Siblings(s.ctx, s.numbersIn("partners", "m1"), []string{"transfer", "import"})
		require.NoError(s, err)
		require.Len(s, siblings, 2)
	}},
	{"one batch may hold an ID in several namespaces", func(s *suite) {
		batch := make([]store.NewMessage, 0, 6)
		for _, namespace := range []string{"a", "b", "c"} {
			for _, id := range []string{"m1", "m2"} {
				m := message(id, "of "+namespace)
				m.Namespace = namespace
				batch = append(batch, m)
			}
		}
		s.accept(batch[2]) // b's m1 is known from before
		results := s.accept(batch...)
		for i, result := range results {
			require.Equal(s, i != 2, result.Inserted, i)
		}
		var rows []struct{ HandlerKey, Namespace, MessageID, ID string }
		require.NoError(s, s.db.Raw(`SELECT s.handler_key, m.namespace, s.message_id, m.id
			FROM inbox_handler_statuses s JOIN inbox_messages m ON m.number = s.message_number`).Scan(&rows).Error)
		for _, row := range rows {
			require.Equal(s, []string{"of " + row.Namespace, row.ID}, []string{row.HandlerKey, row.MessageID})
		}
		require.Len(s, s.statuses(), len(batch))
	}},
	{"a redelivery adds rows for handlers registered since", func(s *suite) {
		s.accept(message("m1", "mail"))
		require.Equal(s, []store.Accepted{{StatusesAdded: 2}}, s.accept(message("m1", "mail", "stock", "audit")))
		require.Equal(s, []string{"m1/mail", "m1/stock", "m1/audit"}, pairs(s.statuses()))
	}},
	{"a handler's row is cleaned, not missing, beyond its retention", func(s *suite) {
		s.accept(message("m1", "mail"))
		with := func(retention time.Duration) store.NewMessage {
			m := message("m1", "mail")
			m.Handlers = append(m.Handlers, store.NewStatus{HandlerKey: "stock", Retention: retention})
			return m
		}
		require.Zero(s, s.acceptAt(noon.Add(time.Hour+time.Microsecond), with(time.Hour))[0].StatusesAdded)
		require.Equal(s, 1, s.acceptAt(noon.Add(time.Hour), with(time.Hour))[0].StatusesAdded)
		m := message("m1")
		m.Handlers = []store.NewStatus{{HandlerKey: "forever"}}
		require.Equal(s, 1, s.acceptAt(noon.Add(1000*time.Hour), m)[0].StatusesAdded)
	}},
	{"a row under a legacy key counts as the handler's row", func(s *suite) {
		s.accept(message("m1", "old"), message("m2"))
		renamed := func(id string) store.NewMessage {
			m := message(id)
			m.Handlers = []store.NewStatus{{HandlerKey: "new", LegacyKeys: []string{"older", "old"}}}
			return m
		}
		accepted := s.accept(renamed("m1"), renamed("m2"), renamed("m3"))
		require.Equal(s, []store.Accepted{{}, {StatusesAdded: 1}, {Inserted: true, StatusesAdded: 1}}, accepted)
		require.Equal(s, []string{"m1/old", "m2/new", "m3/new"}, pairs(s.statuses()))
	}},
	{"a row under a key that another program has given the handler counts", func(s *suite) {
		declare := func(declared map[string][]string) (changed bool) {
			changed, err := s.store.DeclareLegacyKeys(s.ctx, nil, declared, noon)
			require.NoError(s, err)
			return changed
		}
		renamed := map[string][]string{"new": {"old", "older"}, "other": nil}
		require.True(s, declare(renamed))
		require.False(s, declare(renamed), "they are stored")
		require.False(s, declare(map[string][]string{"old": nil}), "an old program knows nothing of the new key")
		require.NoError(s, s.store.SetPaused(s.ctx, "new", true, noon))
		require.NoError(s, s.store.SetPaused(s.ctx, "new", false, noon))
		s.accept(message("m1", "new"), message("m2", "other"), message("m3"))
		for _, key := range []string{"old", "older", "new"} {
			require.Equal(s, []store.Accepted{{}}, s.accept(message("m1", key)), key)
		}
		require.Equal(s, []store.Accepted{{StatusesAdded: 1}, {StatusesAdded: 1}},
			s.accept(message("m2", "old"), message("m3", "old")), "these have no row of the handler")
		require.Equal(s, []string{"m1/new", "m2/other", "m2/old", "m3/old"}, pairs(s.statuses()))
	}},
	{"a key that was dropped, or that another handler has now, no longer counts", func(s *suite) {
		for name, declared := range map[string]map[string][]string{
			"dropped":                          {"new": nil},
			"dropped, and used again":          {"new": nil, "old": nil},
			"used again by a program without":  {"newer": {"new"}, "old": nil},
			"used again as another legacy key": {"newer": {"new"}, "other": {"old"}},
		} {
			id := "of " + name
			_, err := s.store.DeclareLegacyKeys(s.ctx, nil, map[string][]string{"new": {"old"}}, noon)
			require.NoError(s, err)
			s.accept(message(id, "new"))
			require.Equal(s, []store.Accepted{{}}, s.accept(message(id, "old")), name)
			changed, err := s.store.DeclareLegacyKeys(s.ctx, nil, declared, noon)
			require.NoError(s, err)
			require.True(s, changed, name)
			require.Equal(s, []store.Accepted{{StatusesAdded: 1}}, s.accept(message(id, "old")), name)
		}
	}},
	{"legacy keys are declared with the transaction of the first row", func(s *suite) {
		declared := map[string][]string{"new": {"old"}}
		tx := s.db.WithContext(s.ctx).Begin()
		changed, err := s.store.DeclareLegacyKeys(s.ctx, tx, declared, noon)
		require.NoError(s, err)
		require.True(s, changed)
		changed, err = s.store.DeclareLegacyKeys(s.ctx, tx, declared, noon)
		require.NoError(s, err)
		require.False(s, changed)
		require.NoError(s, tx.Rollback().Error)
		changed, err = s.store.DeclareLegacyKeys(s.ctx, nil, declared, noon)
		require.NoError(s, err)
		require.True(s, changed)
		_, err = s.store.DeclareLegacyKeys(s.ctx, s.db, declared, noon)
		require.ErrorIs(s, err, store.ErrNoTransaction)
	}},
	{"the sequence is the order of acceptance", func(s *suite) {
		s.accept(message("z", "h", "a"), message("a", "h"), message("m", "h"))
		s.accept(message("y", "h"), message("b", "h"))
		require.Equal(s, []string{"z/h", "z/a", "a/h", "m/h", "y/h", "b/h"}, pairs(s.statuses()))
	}},
	{"the sequence follows the batch also where known messages get rows", func(s *suite) {
		s.accept(message("k1", "old"), message("k2", "old"))
		accepted := s.accept(message("n1", "old", "new"), message("k2", "old", "new"), message("n2", "new"),
			message("k1", "new"), message("n3", "old"))
		require.Equal(s, []store.Accepted{{Inserted: true, StatusesAdded: 2}, {StatusesAdded: 1},
			{Inserted: true, StatusesAdded: 1},
			{StatusesAdded: 1}, {Inserted: true, StatusesAdded: 1}}, accepted)
		require.Equal(s, []string{"k1/old", "k2/old", "n1/old", "n1/new", "k2/new", "n2/new", "k1/new", "n3/old"},
			pairs(s.statuses()))
	}},
	{"each status has the size of its message, however it is inserted", func(s *suite) {
		sized := message("sized", "old")
		sized.Content, sized.SerializedProperties = bytes.Repeat([]byte("é"), 5<<10), `{"ü":"1"}`
		s.accept(sized)
		again := sized
		again.Handlers = []store.NewStatus{{HandlerKey: "old"}, {HandlerKey: "new"}}
		again.Content, again.SerializedProperties = []byte("other"), "{}" // what was stored first counts
		s.accept(again)
		empty := dispatched(message("empty", "mail"))
		empty.Content = nil
		held := sized
		held.ID, held.Handlers = "held", []store.NewStatus{{HandlerKey: "mail", Claim: true}}
		s.acceptFor(s.worker("mail"), empty, held)
		sizes := map[string]int{}
		for _, row := range s.statuses() {
			sizes[row.MessageID+"/"+row.HandlerKey] = row.MessageBytes
		}
		size := 10<<10 + len(sized.SerializedProperties)
		require.Equal(s, map[string]int{"sized/old": size, "sized/new": size, "held/mail": size,
			"empty/mail": len(empty.SerializedProperties)}, sizes)
	}},
	{"rejected records are stored once per coordinates", func(s *suite) {
		bad := rejection(1)
		bad.Reason = strings.Repeat("é", 3000) + "\x00"
		bad.Headers = "[\"\xff\x00\"]"
		bad.Timestamp = time.UnixMilli(1 << 62)
		bad.Key, bad.Value = nil, []byte{0}
		other := rejection(2)
		for range 2 {
			_, err := s.store.Accept(s.ctx, store.AcceptBatch{Rejected: []models.RejectedMessage{*bad, *other, *other},
				Now: noon})
			require.NoError(s, err)
		}
		var rows []models.RejectedMessage
		require.NoError(s, s.db.Order("record_offset").Find(&rows).Error)
		require.Len(s, rows, 2)
		require.Nil(s, rows[0].Key)
		require.Equal(s, []byte{0}, rows[0].Value)
		require.Equal(s, columns.MaxLastError, len([]rune(rows[0].Reason)))
		require.Equal(s, noon, rows[0].RejectedAt.UTC())
		require.NotEmpty(s, rows[0].ID)
		require.Equal(s, []byte("key"), rows[1].Key)
		require.Equal(s, other.Timestamp, rows[1].Timestamp.UTC())
	}},
	{"a row under one of a message's keys counts under another if a program has renamed the handler", func(s *suite) {
		s.accept(message("m", "new"))
		_, err := s.store.DeclareLegacyKeys(s.ctx, nil, map[string][]string{"new": {"old"}}, noon)
		require.NoError(s, err)
		require.Equal(s, []store.Accepted{{}}, s.accept(message("m", "new", "old")))
		require.Equal(s, []store.Accepted{{StatusesAdded: 1}}, s.accept(message("m", "new", "old", "other")))
	}},
	{"what is received and rejected has the time of the database's clock", func(s *suite) {
		if s.onSQLite("all processes of a SQLite file share the machine's clock") {
			return
		}
		s.byTheMachinesClock()
		for _, wrong := range []time.Duration{-time.Hour, time.Hour} {
			before, err := s.store.Clock(s.ctx, time.Now())
			require.NoError(s, err)
			its := time.Now().Add(wrong)
			_, err = s.store.Accept(s.ctx, store.AcceptBatch{Messages: []store.NewMessage{message(wrong.String(), "mail")},
				Rejected: []models.RejectedMessage{*rejection(int64(wrong))}, Now: its})
			require.NoError(s, err)
			_, err = s.store.KeepGap(s.ctx, models.Gap{ID: uuid.NewString(), Channel: "c", Topic: "t", FromOffset: int64(wrong),
				ToOffset: int64(wrong) + 1, FoundAt: its})
			require.NoError(s, err)
			after, err := s.store.Clock(s.ctx, time.Now())
			require.NoError(s, err)
			for _, at := range []string{"inbox_messages.received_at", "inbox_handler_statuses.created_at",
				"inbox_rejected_messages.rejected_at", "inbox_gaps.found_at"} {
				table, column, _ := strings.Cut(at, ".")
				var wrongly int64
				require.NoError(s, s.db.Table(table).Where(column+" > ?", after).Count(&wrongly).Error)
				require.Zero(s, wrongly, "%s, %s", at, wrong)
				require.NoError(s, s.db.Table(table).Where(column+" < ?", before.Add(-time.Minute)).Count(&wrongly).Error)
				require.Zero(s, wrongly, "%s, %s", at, wrong)
			}
		}
	}},
	{"the database's clock tells a row that was cleaned from one that is missing", func(s *suite) {
		if s.onSQLite("all processes of a SQLite file share the machine's clock") {
			return
		}
		s.byTheMachinesClock()
		kept := func(id string, handlers ...string) store.NewMessage {
			m := message(id, handlers...)
			for i := range m.Handlers {
				m.Handlers[i].Retention = time.Hour
			}
			return m
		}
		now := time.Now()
		s.acceptAt(now, kept("old", "mail"), kept("young", "mail"))
		require.NoError(s, s.db.Model(&models.Message{}).Where("id = ?", "old").Update("received_at", now.Add(-2*time.Hour)).Error)
		for _, clock := range []time.Duration{-2 * time.Hour, 2 * time.Hour} {
			added := s.acceptAt(now.Add(clock), kept("old", clock.String()), kept("young", clock.String()))
			require.Equal(s, []store.Accepted{{}, {StatusesAdded: 1}}, added, clock)
		}
	}},
	{"messages and rejected records are stored together or not at all", func(s *suite) {
		bad := rejection(1)
		bad.Topic = "\xff"
		_, err := s.store.Accept(s.ctx, store.AcceptBatch{
			Messages: []store.NewMessage{message("m1", "mail")}, Rejected: []models.RejectedMessage{*bad}, Now: noon,
		})
		require.Error(s, err)
		require.Empty(s, s.messageIDs())
		require.Zero(s, s.rejectedCount())
	}},
	{"a message ID twice in one batch is an error", func(s *suite) {
		_, err := s.store.Accept(s.ctx, store.AcceptBatch{Messages: []store.NewMessage{message("m1"), message("m1")},
			Now: noon})
		require.ErrorContains(s, err, `"m1"`)
		require.Empty(s, s.messageIDs())
	}},
}

// contents returns the contents of the stored messages by ID. Empty ones are as the driver scans
// them.
func (s *suite) contents() map[string]string {
	s.Helper()
	var rows []models.Message
	require.NoError(s, s.db.WithContext(s.ctx).Find(&rows).Error)
	found := map[string]string{}
	for _, row := range rows {
		found[row.ID] = string(row.Content)
	}
	return found
}

func (s *suite) contentsOf(messages []store.NewMessage) map[string]string {
	given := map[string]string{}
	for _, m := range messages {
		given[m.ID] = string(m.Content)
	}
	return given
}

func rejection(offset int64) *models.RejectedMessage {
	return &models.RejectedMessage{
		Channel: "orders", Topic: "orders.events", Partition: 3, Offset: offset, Timestamp: noon.Add(-time.Minute),
		Key: []byte("key"), Value: []byte("value"), Headers: "[]", Reason: "missing_id",
	}
}

// rejecting returns a function that makes the row of a message whose ID is a conflict.
func rejecting(offset int64) func() models.RejectedMessage {
	return func() models.RejectedMessage {
		row := *rejection(offset)
		row.Reason = "id_conflict"
		return row
	}
}

func (s *suite) rejectedCount() int64 {
	s.Helper()
	var count int64
	require.NoError(s, s.db.Model(&models.RejectedMessage{}).Count(&count).Error)
	return count
}

var acceptTxTests = []test{
	{"its writes follow the transaction's commit or rollback", func(s *suite) {
		batch := store.AcceptBatch{Messages: []store.NewMessage{message("m1", "mail")}, Now: noon}
		tx := s.begin()
		accepted, err := s.store.AcceptTx(s.ctx, tx, batch)
		require.NoError(s, err)
		require.Equal(s, []store.Accepted{{Inserted: true, StatusesAdded: 1}}, accepted)
		require.NoError(s, tx.Rollback().Error)
		require.Empty(s, s.messageIDs())

		tx = s.begin()
		_, err = s.store.AcceptTx(s.ctx, tx, batch)
		require.NoError(s, err)
		require.NoError(s, tx.Commit().Error)
		require.Equal(s, []string{"m1/mail"}, pairs(s.statuses()))
	}},
	{"a session without a transaction is refused", func(s *suite) {
		batch := store.AcceptBatch{Messages: []store.NewMessage{message("m1", "mail")}, Now: noon}
		_, err := s.store.AcceptTx(s.ctx, s.db, batch)
		require.ErrorIs(s, err, store.ErrNoTransaction)
		_, err = s.store.AcceptTx(s.ctx, nil, batch)
		require.ErrorIs(s, err, store.ErrNoTransaction)
		_, err = s.store.CompleteTx(s.ctx, s.db, []store.Completion{{}}, noon)
		require.ErrorIs(s, err, store.ErrNoTransaction)
		require.Empty(s, s.messageIDs())
	}},
	{"two accepts in one transaction see each other's rows", func(s *suite) {
		tx := s.begin()
		for i, expected := range []store.Accepted{{Inserted: true, StatusesAdded: 1}, {StatusesAdded: 1}} {
			accepted, err := s.store.AcceptTx(s.ctx, tx, store.AcceptBatch{Messages: []store.NewMessage{message("m1",
				[]string{"a", "b"}[i])}, Now: noon})
			require.NoError(s, err)
			require.Equal(s, expected, accepted[0])
		}
		require.NoError(s, tx.Commit().Error)
		require.Equal(s, []string{"m1/a", "m1/b"}, pairs(s.statuses()))
	}},
}

// sealedIf returns a message whose content is sealed: as another text, which a suffix distinguishes from others.
func sealedIf(sealed bool, m store.NewMessage, suffix string) store.NewMessage {
	if !sealed {
		return m
	}
	m.PlainSHA256 = m.ContentSHA256()
	m.SerializedProperties = properties.Seal{Key: "k1", SHA256: m.PlainSHA256}.AddTo(m.SerializedProperties)
	m.Content = []byte("sealed " + suffix)
	return m
}
