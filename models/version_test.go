package models_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// drivers open fresh databases, one for each supported driver.
var drivers = map[string]func(*testing.T) *gorm.DB{
	"SQLite":     func(t *testing.T) *gorm.DB { return testenv.SQLite(t) },
	"PostgreSQL": func(t *testing.T) *gorm.DB { return testenv.Postgres(t) },
}

// tables are an inbox's tables with some names in a database.
type tables struct {
	*testing.T
	db     *gorm.DB
	naming models.Naming
}

func (s tables) messages() *gorm.DB { return s.db.Table(s.naming.Messages()) }
func (s tables) statuses() *gorm.DB { return s.db.Table(s.naming.HandlerStatuses()) }

// add stores a message and a status of it, and returns the status as read.
func (s tables) add(id string) models.HandlerStatus {
	m := newMessage(id)
	require.NoError(s, s.messages().Create(m).Error)
	status := newStatus(m)
	require.NoError(s, s.statuses().Create(status).Error)
	return s.read(status.ID)
}

func (s tables) read(id string) (status models.HandlerStatus) {
	require.NoError(s, s.statuses().Take(&status, "id = ?", id).Error)
	return status
}

// complete does what the processor does, in SQL of its own.
func (s tables) complete(id string) {
	require.NoError(s, s.db.Exec("UPDATE "+columns.Quote(s.naming.HandlerStatuses())+
		" SET completed_at = ?, outcome = 'processed', version = version + 2 WHERE id = ?", time.Now().UTC(), id).Error)
}

// onEveryDriver runs a test on tables with the default names, and with others.
func onEveryDriver(t *testing.T, run func(s tables)) {
	for name, fresh := range drivers {
		t.Run(name, func(t *testing.T) {
			db := fresh(t)
			namings := map[string]models.Naming{"default names": {}, "a prefix": {Prefix: "Shop_"}}
			if db.Dialector.Name() == "postgres" {
				namings["a schema"] = models.Naming{Schema: "Orders"}
			}
			for name, naming := range namings {
				require.NoError(t, models.Migrate(t.Context(), db, naming, name))
			}
			for name, naming := range namings {
				t.Run(name, func(t *testing.T) { run(tables{T: t, db: db, naming: naming}) })
			}
		})
	}
}

// TestAStatusReadBeforeItChangedIsNotWritten proves contract 3.2, 3.4: a write that lost a race
// changes nothing.
func TestAStatusReadBeforeItChangedIsNotWritten(t *testing.T) {
	writes := map[string]func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB{
		"Save": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB { return db.Save(stale) },
		"Save of several": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Save([]*models.HandlerStatus{stale})
		},
		"Updates":          func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB { return db.Select("*").Updates(stale) },
		"Updates by value": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB { return db.Select("*").Updates(*stale) },
		"Updates of columns": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Model(stale).Updates(map[string]any{"completed_at": nil, "outcome": "", "version": 77})
		},
		"Updates with a condition": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Model(&models.HandlerStatus{}).Select("*").Where("id = ?", stale.ID).Updates(*stale)
		},
		"Updates with an OR": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Model(stale).Where("handler_key = 'h'").Or("handler_key = 'g'").Update("completed_at", nil)
		},
		"Updates of several": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Model([]models.HandlerStatus{*stale, *stale}).Update("completed_at", nil)
		},
		"UpdateColumn": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Model(stale).UpdateColumn("completed_at", nil)
		},
		"an upsert": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Clauses(clause.OnConflict{UpdateAll: true}).Create(stale)
		},
		"an upsert of one column": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "id"}},
				DoUpdates: clause.AssignmentColumns([]string{"completed_at"})}).Create(stale)
		},
		"Delete": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB { return db.Delete(stale) },
		"Delete of several": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			return db.Delete([]*models.HandlerStatus{stale})
		},
		"Save of one whose version was not read": func(db *gorm.DB, stale *models.HandlerStatus) *gorm.DB {
			stale.Version = 0
			return db.Save(stale)
		},
	}
	onEveryDriver(t, func(s tables) {
		for name, write := range writes {
			s.Run(name, func(t *testing.T) {
				s := tables{T: t, db: s.db, naming: s.naming}
				stale := s.add(uuid.NewString())
				s.complete(stale.ID)
				before := s.read(stale.ID)
				version := stale.Version

				result := write(s.statuses(), &stale)
				require.NoError(t, result.Error)
				require.Zero(t, result.RowsAffected)
				require.Equal(t, before, s.read(stale.ID))
				require.LessOrEqual(t, stale.Version, version, "a second try is as late")
			})
		}
	})
}

func TestADeletedStatusIsNotSavedAgain(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		stale := s.add("1")
		require.NoError(s, s.statuses().Delete(&models.HandlerStatus{}, "id = ?", stale.ID).Error)
		result := s.statuses().Save(&stale)
		require.NoError(s, result.Error)
		require.Zero(s, result.RowsAffected)
		var left int64
		require.NoError(s, s.statuses().Count(&left).Error)
		require.Zero(s, left)
	})
}

func TestAStatusThatWasReadIsWrittenAndItsVersionRaised(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		status := s.add("1")
		text := func(s string) *string { return &s }
		for i, write := range []func() *gorm.DB{
			func() *gorm.DB { status.LastError = text("0"); return s.statuses().Save(&status) },
			func() *gorm.DB { return s.statuses().Model(&status).Update("last_error", "1") },
			func() *gorm.DB {
				return s.statuses().Model(&status).Updates(models.HandlerStatus{LastError: text("2")})
			},
			func() *gorm.DB { return s.statuses().Model(&status).UpdateColumns(map[string]any{"last_error": "3"}) },
			func() *gorm.DB {
				return s.statuses().Model(&status).Clauses(clause.Returning{}).Where("error_count = 0").Update("last_error", "4")
			},
			func() *gorm.DB { status.LastError = text("5"); return s.statuses().Save(&status) },
		} {
			version := status.Version
			result := write()
			require.NoError(s, result.Error)
			require.EqualValues(s, 1, result.RowsAffected, "write %d", i)
			require.Equal(s, version+1, status.Version, "write %d: the caller's own goes on", i)
			require.Equal(s, status.Version, s.read(status.ID).Version)
			require.EqualValues(s, rune('0'+i), (*s.read(status.ID).LastError)[0])
		}
		result := s.statuses().Delete(&status)
		require.NoError(s, result.Error)
		require.EqualValues(s, 1, result.RowsAffected)
	})
}

func TestOnlyTheStaleStatusOfSeveralIsSkipped(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		fresh, stale, other := s.add("1"), s.add("2"), s.add("3")
		s.complete(stale.ID)
		fresh.ErrorCount, stale.ErrorCount, other.ErrorCount = 7, 7, 7
		result := s.statuses().Save([]*models.HandlerStatus{&fresh, &stale, &other})
		require.NoError(s, result.Error)
		require.EqualValues(s, 2, result.RowsAffected)
		require.Nil(s, s.read(fresh.ID).CompletedAt)
		require.Equal(s, 7, s.read(fresh.ID).ErrorCount)
		require.EqualValues(s, 2, s.read(other.ID).Version)
		require.NotNil(s, s.read(stale.ID).CompletedAt)

		again := []models.HandlerStatus{s.read(fresh.ID), stale, s.read(other.ID)}
		result = s.statuses().Model(&again).Update("error_count", 8)
		require.NoError(s, result.Error)
		require.EqualValues(s, 2, result.RowsAffected)
		require.Zero(s, s.read(stale.ID).ErrorCount)

		again = []models.HandlerStatus{s.read(fresh.ID), stale, s.read(other.ID)}
		result = s.statuses().Delete(&again)
		require.NoError(s, result.Error)
		require.EqualValues(s, 2, result.RowsAffected)
		require.NotNil(s, s.read(stale.ID).CompletedAt)
	})
}

// TestAnUpdateByConditionRaisesEachVersion covers an update by a condition alone, which has read no
// version that it could compare.
func TestAnUpdateByConditionRaisesEachVersion(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		first, second := s.add("1"), s.add("2")
		result := s.statuses().Model(&models.HandlerStatus{}).Where("handler_key = ?", "h").
			Updates(map[string]any{"error_count": 3, "version": gorm.Expr("version + 1")})
		require.NoError(s, result.Error)
		require.EqualValues(s, 2, result.RowsAffected)
		for _, id := range []string{first.ID, second.ID} {
			require.Equal(s, 3, s.read(id).ErrorCount)
			require.EqualValues(s, 2, s.read(id).Version)
		}
		result = s.statuses().Unscoped().Model(&first).Update("error_count", 4)
		require.NoError(s, result.Error)
		require.EqualValues(s, 1, result.RowsAffected, "Unscoped leaves the comparison out")
		require.EqualValues(s, 3, s.read(first.ID).Version)
	})
}

func TestANewStatusCanBeSaved(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		m := newMessage("1")
		require.NoError(s, s.messages().Create(m).Error)
		status := newStatus(m)
		result := s.statuses().Save(status)
		require.NoError(s, result.Error)
		require.EqualValues(s, 1, result.RowsAffected)
		require.EqualValues(s, 1, s.read(status.ID).Version)
	})
}
