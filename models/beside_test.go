package models_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/models"
)

// inEachInbox stores the same number of messages, and so the same message numbers, in every inbox
// of a database, and runs a test for each.
func inEachInbox(t *testing.T, run func(s tables, status models.HandlerStatus, message string)) {
	for name, fresh := range drivers {
		t.Run(name, func(t *testing.T) {
			db := fresh(t)
			namings := map[string]models.Naming{"default": {}, "shop": {Prefix: "Shop_"},
				"trap": {Prefix: "inbox_handler_statuses_"}}
			if db.Dialector.Name() == "postgres" {
				namings["orders"] = models.Naming{Schema: "Orders"}
				namings["both"] = models.Naming{Schema: "Orders", Prefix: "b_"}
			}
			statuses := map[string]models.HandlerStatus{}
			for name, naming := range namings {
				require.NoError(t, models.Migrate(t.Context(), db, naming, name))
				statuses[name] = tables{T: t, db: db, naming: naming}.add("of " + name)
				require.EqualValues(t, 1, statuses[name].MessageNumber)
			}
			for name, naming := range namings {
				t.Run(name, func(t *testing.T) {
					run(tables{T: t, db: db, naming: naming}, statuses[name], "of "+name)
				})
			}
		})
	}
}

// TestPreloadReadsTheMessagesOfTheSameInbox proves contract 3.4: no inbox sees another's rows.
func TestPreloadReadsTheMessagesOfTheSameInbox(t *testing.T) {
	inEachInbox(t, func(s tables, status models.HandlerStatus, message string) {
		scope := func(db *gorm.DB) *gorm.DB {
			return db.Model(&models.HandlerStatus{}).Table(s.naming.HandlerStatuses())
		}
		for name, preload := range map[string]func(db *gorm.DB) *gorm.DB{
			"by name":         func(db *gorm.DB) *gorm.DB { return db.Preload("Message") },
			"all":             func(db *gorm.DB) *gorm.DB { return db.Preload(clause.Associations) },
			"with conditions": func(db *gorm.DB) *gorm.DB { return db.Preload("Message", "id = ?", message) },
			"from there already": func(db *gorm.DB) *gorm.DB {
				return db.Preload("Message", func(db *gorm.DB) *gorm.DB { return db.Table(s.naming.Messages()) })
			},
		} {
			var found []models.HandlerStatus
			require.NoError(s, preload(s.db.Scopes(scope)).Find(&found).Error, name)
			require.Len(s, found, 1)
			require.Equal(s, message, found[0].Message.ID, name)
			var one models.HandlerStatus
			require.NoError(s, preload(s.statuses()).Take(&one, "id = ?", status.ID).Error, name)
			require.Equal(s, message, one.Message.ID, name)
			require.NoError(s, preload(s.statuses()).FindInBatches(&found, 1, func(tx *gorm.DB, _ int) error {
				require.Equal(s, message, found[0].Message.ID, name)
				return tx.Error
			}).Error)
		}
		session := s.db.Scopes(scope).Preload("Message").Session(&gorm.Session{})
		for range 2 {
			var one models.HandlerStatus
			require.NoError(s, session.Take(&one).Error)
			require.Equal(s, message, one.Message.ID)
		}
	})
}

func TestJoinsOfAMessageReadTheSameInboxOrFail(t *testing.T) {
	inEachInbox(t, func(s tables, _ models.HandlerStatus, message string) {
		for _, join := range []func(*gorm.DB) *gorm.DB{
			func(db *gorm.DB) *gorm.DB { return db.Joins("Message") },
			func(db *gorm.DB) *gorm.DB { return db.InnerJoins("Message") },
		} {
			var found []models.HandlerStatus
			err := join(s.statuses()).Find(&found).Error
			if (s.naming == models.Naming{}) {
				require.NoError(s, err)
				require.Equal(s, message, found[0].Message.ID)
				continue
			}
			require.ErrorContains(s, err, `Joins("Message") of `)
			require.ErrorContains(s, err, `use Preload("Message")`)
			require.Empty(s, found)
			require.ErrorContains(s, join(s.statuses()).Model(&models.HandlerStatus{}).Count(new(int64)).Error,
				`Joins("Message") of `)
		}
	})
}

// TestAssociationNeverReadsAnotherInboxsMessage covers GORM's association mode, which reads a
// message from the statuses' table or from the table with the default name.
func TestAssociationNeverReadsAnotherInboxsMessage(t *testing.T) {
	inEachInbox(t, func(s tables, status models.HandlerStatus, message string) {
		if (s.naming == models.Naming{}) {
			var found models.Message
			require.NoError(s, s.db.Model(&status).Association("Message").Find(&found))
			require.Equal(s, message, found.ID)
			return
		}
		scope := func(db *gorm.DB) *gorm.DB {
			return db.Model(&models.HandlerStatus{}).Table(s.naming.HandlerStatuses())
		}
		for _, db := range []*gorm.DB{s.statuses(), s.db.Scopes(scope)} {
			var found models.Message
			require.Error(s, db.Model(&status).Association("Message").Find(&found))
			require.Empty(s, found)
		}
	})
}

func TestPreloadFromAnAliasIsRefused(t *testing.T) {
	inEachInbox(t, func(s tables, _ models.HandlerStatus, _ string) {
		var found []models.HandlerStatus
		aliased := func() *gorm.DB { return s.db.Table(columns.Quote(s.naming.HandlerStatuses()) + " AS s") }
		require.ErrorContains(s, aliased().Preload("Message").Find(&found).Error, "the messages beside it are not known")
		require.NoError(s, aliased().Find(&found).Error)
	})
}

// TestAStatusIsWrittenWithoutItsMessage proves that GORM does not write the message. It would write
// it into the table with the default name.
func TestAStatusIsWrittenWithoutItsMessage(t *testing.T) {
	inEachInbox(t, func(s tables, status models.HandlerStatus, _ string) {
		count := func() (n int64) {
			require.NoError(s, s.db.Table(models.Naming{}.Messages()).Count(&n).Error)
			return n
		}
		before := count()
		status.Message = newMessage("written with its status")
		require.NoError(s, s.statuses().Save(&status).Error)
		require.NoError(s, s.statuses().Session(&gorm.Session{FullSaveAssociations: true}).Updates(&status).Error)
		stale := status
		stale.Version--
		require.NoError(s, s.statuses().Save(&stale).Error)
		other := newStatus(&models.Message{ID: status.MessageID, Number: models.MessageNumber(status.MessageNumber)})
		other.HandlerKey, other.Message = "g", newMessage("created with its status")
		require.NoError(s, s.statuses().Create(other).Error)
		require.Equal(s, before, count())
		require.NoError(s, s.statuses().Delete(other).Error)
	})
}
