package models_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/models"
)

func newMessage(id string) *models.Message {
	return &models.Message{ID: id, Namespace: "shop", Content: []byte("x"), SerializedProperties: "{}",
		ReceivedAt: time.Now()}
}

func newStatus(m *models.Message) *models.HandlerStatus {
	return &models.HandlerStatus{ID: uuid.NewString(), MessageID: m.ID, HandlerKey: "h", CreatedAt: time.Now(),
		MessageNumber: int64(m.Number)}
}

// TestCreateAssignsNumbersAndSequences proves contract 3.4: the models are ordinary GORM models.
func TestCreateAssignsNumbersAndSequences(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		for name, prepare := range map[string]func(*gorm.DB){
			"Migrate":     func(db *gorm.DB) { require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders")) },
			"AutoMigrate": func(db *gorm.DB) { require.NoError(t, db.AutoMigrate(models.All()...)) },
		} {
			t.Run(name, func(t *testing.T) {
				db := fresh()
				prepare(db)
				first, second := newMessage("1"), newMessage("2")
				require.NoError(t, db.Create(first).Error)
				require.NoError(t, db.Create(second).Error)
				batch := []*models.Message{newMessage("3"), newMessage("4")}
				require.NoError(t, db.Create(batch).Error)
				values := []models.Message{*newMessage("5"), *newMessage("6"), *newMessage("7")}
				require.NoError(t, db.CreateInBatches(values, 2).Error)
				given := newMessage("8")
				given.Number = 1000
				require.NoError(t, db.Create(given).Error)

				statuses := []*models.HandlerStatus{newStatus(first), newStatus(second), newStatus(batch[1])}
				require.NoError(t, db.Create(statuses).Error)
				last := newMessage("9")
				require.NoError(t, db.Create(last).Error)
				require.NoError(t, db.Create(newStatus(last)).Error)

				var stored []models.Message
				require.NoError(t, db.Order("id").Find(&stored).Error)
				numbers := map[models.MessageNumber]string{}
				for _, m := range stored {
					require.Positive(t, m.Number)
					numbers[m.Number] = m.ID
				}
				require.Len(t, numbers, 9)
				for _, m := range append(batch, first, second, given, &values[0], &values[1], &values[2]) {
					require.Equal(t, m.ID, numbers[m.Number], "assigned in the caller's message")
				}
				var rows []models.HandlerStatus
				require.NoError(t, db.Order("sequence").Find(&rows).Error)
				require.Len(t, rows, 4)
				for i, row := range rows {
					require.EqualValues(t, i+1, row.Sequence)
					require.Equal(t, row.MessageID, numbers[models.MessageNumber(row.MessageNumber)])
					require.EqualValues(t, 1, row.Version)
				}
				require.Equal(t, rows[0].Sequence, statuses[0].Sequence, "assigned in the caller's message")
			})
		}
	})
}

func TestNumbersOfMessagesAreNeitherChangedNorReused(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		naming := models.Naming{Prefix: "Shop_"}
		require.NoError(t, models.Migrate(t.Context(), db, naming, "shop"))
		messages := func() *gorm.DB { return db.Table(naming.Messages()) }
		last := models.MessageNumber(0)
		for i := range 3 {
			m := newMessage(fmt.Sprint(i))
			require.NoError(t, messages().Create(m).Error)
			require.Greater(t, m.Number, last)
			last = m.Number
			require.NoError(t, messages().Delete(m).Error)
		}
		m := newMessage("kept")
		require.NoError(t, messages().Create(m).Error)
		again := newMessage("kept")
		again.Type = "changed"
		require.NoError(t, messages().Clauses(clause.OnConflict{UpdateAll: true}).Create(again).Error)
		again.Number = 0
		require.NoError(t, messages().Save(again).Error)
		var stored models.Message
		require.NoError(t, messages().Take(&stored, "id = ?", "kept").Error)
		require.Equal(t, m.Number, stored.Number)
		require.Equal(t, "changed", stored.Type)
	})
}

func TestNumbersInSomeRowsOfABatchAreRefused(t *testing.T) {
	onEveryDialect(t, func(t *testing.T, fresh func() *gorm.DB) {
		db := fresh()
		require.NoError(t, models.Migrate(t.Context(), db, models.Naming{}, "orders"))
		batch := []*models.Message{newMessage("1"), newMessage("2")}
		batch[1].Number = 7
		require.ErrorContains(t, db.Create(batch).Error, "number: set in some of the rows")
	})
}
