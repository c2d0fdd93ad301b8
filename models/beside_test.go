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

// TestRelationReadsMessagesOfTheSameInbox proves contract 3.4: no inbox sees another's rows.
func TestRelationReadsMessagesOfTheSameInbox(t *testing.T) {
	inEachInbox(t, func(s tables, status models.HandlerStatus, message string) {
		id := `"Message"."id" = ?`
		for name, with := range map[string]func(db *gorm.DB) *gorm.DB{
			"Preload":                 func(db *gorm.DB) *gorm.DB { return db.Preload("Message") },
			"Preload of all":          func(db *gorm.DB) *gorm.DB { return db.Preload(clause.Associations) },
			"Preload with conditions": func(db *gorm.DB) *gorm.DB { return db.Preload("Message", "id = ?", message) },
			"Preload from there already": func(db *gorm.DB) *gorm.DB {
				return db.Preload("Message", func(db *gorm.DB) *gorm.DB { return db.Clauses(s.naming) })
			},
			"Joins":                 func(db *gorm.DB) *gorm.DB { return db.Joins("Message") },
			"Joins with conditions": func(db *gorm.DB) *gorm.DB { return db.Joins("Message").Where(id, message) },
			"Joins on conditions": func(db *gorm.DB) *gorm.DB {
				return db.Joins("Message", s.db.Where(&models.Message{ID: message}).Or("1 = 1")).Where("1 = 1")
			},
			"Joins of columns": func(db *gorm.DB) *gorm.DB { return db.Joins("Message", s.db.Select("id", "number")) },
			"InnerJoins":       func(db *gorm.DB) *gorm.DB { return db.InnerJoins("Message").Order(`"Message"."id"`) },
			"both":             func(db *gorm.DB) *gorm.DB { return db.Joins("Message").Preload("Message") },
		} {
			for from, db := range map[string]*gorm.DB{"the naming": s.db.Clauses(s.naming), "the table": s.statuses()} {
				db, name := db.Session(&gorm.Session{}), name+" from "+from
				var found []models.HandlerStatus
				require.NoError(s, with(db).Find(&found).Error, name)
				require.Len(s, found, 1)
				require.Equal(s, message, found[0].Message.ID, name)
				var one models.HandlerStatus
				require.NoError(s, with(db).Take(&one, map[string]any{"id": status.ID}).Error, name)
				require.Equal(s, message, one.Message.ID, name)
				var n int64
				require.NoError(s, with(db).Model(&models.HandlerStatus{}).Count(&n).Error, name)
				require.EqualValues(s, 1, n, name)
				session := with(db).Session(&gorm.Session{})
				for range 2 {
					var again models.HandlerStatus
					require.NoError(s, session.Take(&again).Error, name)
					require.Equal(s, message, again.Message.ID, name)
				}
				type mine struct{ models.HandlerStatus }
				var embedded mine
				require.NoError(s, with(db).Take(&embedded).Error, name)
				require.Equal(s, message, embedded.Message.ID, name)
			}
		}
		var none []models.HandlerStatus
		require.NoError(s, s.db.Clauses(s.naming).InnerJoins("Message", s.db.Where(&models.Message{ID: "another"})).Find(&none).Error)
		require.Empty(s, none)
	})
}

// TestGenericsReadTheSameInbox proves contract 3.4 for gorm.G.
func TestGenericsReadTheSameInbox(t *testing.T) {
	inEachInbox(t, func(s tables, status models.HandlerStatus, message string) {
		statuses, ctx := gorm.G[models.HandlerStatus](s.db, s.naming), s.Context()
		on := func(db gorm.JoinBuilder, joined, current clause.Table) error {
			db.Where("? = ?", clause.Column{Table: joined.Name, Name: "id"}, message)
			return nil
		}
		for name, chain := range map[string]gorm.ChainInterface[models.HandlerStatus]{
			"Preload": statuses.Preload("Message", nil),
			"Preload with conditions": statuses.Preload("Message", func(db gorm.PreloadBuilder) error {
				db.Where("id = ?", message)
				return nil
			}),
			"Joins":      statuses.Joins(clause.LeftJoin.Association("Message"), nil),
			"InnerJoins": statuses.Joins(clause.Has("Message"), on),
			"Joins as":   statuses.Joins(clause.Has("Message").As("m"), on),
		} {
			found, err := chain.Where("? = ?", clause.Column{Table: clause.CurrentTable, Name: "id"}, status.ID).Find(ctx)
			require.NoError(s, err, name)
			require.Len(s, found, 1)
			if name != "Joins as" { // GORM reads an alias into no field
				require.Equal(s, message, found[0].Message.ID, name)
			}
		}
		found, err := gorm.G[models.Message](s.db, s.naming).First(ctx)
		require.NoError(s, err)
		require.Equal(s, message, found.ID)
		n, err := statuses.Where("message_id = ?", message).Count(ctx, "*")
		require.NoError(s, err)
		require.EqualValues(s, 1, n)
	})
}

// TestAssociationNeverReadsAnotherInbox covers GORM's association mode, whose conditions
// name the default table. Under another prefix the database refuses them.
func TestAssociationNeverReadsAnotherInbox(t *testing.T) {
	inEachInbox(t, func(s tables, status models.HandlerStatus, message string) {
		var found models.Message
		err := s.db.Clauses(s.naming).Model(&status).Association("Message").Find(&found)
		if s.naming.Prefix == "" {
			require.NoError(s, err)
			require.Equal(s, message, found.ID)
		} else {
			require.Error(s, err)
			require.Empty(s, found)
		}
		if (s.naming != models.Naming{}) {
			found = models.Message{}
			require.Error(s, s.statuses().Model(&status).Association("Message").Find(&found))
			require.Empty(s, found)
		}
	})
}

// TestRelationOnAnAliasIsRefused covers what hides which inbox a status is of.
func TestRelationOnAnAliasIsRefused(t *testing.T) {
	inEachInbox(t, func(s tables, _ models.HandlerStatus, _ string) {
		var found []models.HandlerStatus
		aliased := func() *gorm.DB { return s.db.Table(columns.Quote(s.naming.HandlerStatuses()) + " AS s") }
		for _, with := range []func(*gorm.DB) *gorm.DB{
			func(db *gorm.DB) *gorm.DB { return db.Preload("Message") },
			func(db *gorm.DB) *gorm.DB { return db.Preload(clause.Associations) },
			func(db *gorm.DB) *gorm.DB { return db.Joins("Message") },
		} {
			require.ErrorContains(s, with(aliased()).Find(&found).Error, "the messages beside it are not known")
			require.ErrorContains(s, with(s.db.Table("(?) AS s", s.statuses())).Find(&found).Error, "the messages beside it are not known")
		}
		require.NoError(s, aliased().Find(&found).Error)

		type mine struct {
			Status models.HandlerStatus `gorm:"embedded"`
		}
		var embedded []mine
		for _, relation := range []string{"Status.Message", clause.Associations} {
			err := s.statuses().Preload(relation).Find(&embedded).Error
			if (s.naming == models.Naming{}) {
				require.NoError(s, err)
				continue
			}
			require.ErrorContains(s, err, "the messages beside it are not known")
		}
	})
}

// TestStatusIsWrittenWithoutItsMessage proves that GORM does not write the message. It would write
// it into the table with the default name.
func TestStatusIsWrittenWithoutItsMessage(t *testing.T) {
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
