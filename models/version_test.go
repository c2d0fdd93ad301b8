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

// sessions are settings of GORM under which the promises of a version hold, too.
func sessions(db *gorm.DB) map[string]*gorm.DB {
	return map[string]*gorm.DB{
		"plain":        db,
		"without hook": db.Session(&gorm.Session{SkipHooks: true}),
		"prepared":     db.Session(&gorm.Session{PrepareStmt: true}),
		"global":       db.Session(&gorm.Session{AllowGlobalUpdate: true}),
		"full":         db.Session(&gorm.Session{FullSaveAssociations: true}),
		"batches":      db.Session(&gorm.Session{CreateBatchSize: 1, SkipDefaultTransaction: true}),
	}
}

// writes are GORM's ways to write a status that was read. Each tries to leave it pending.
var writes = map[string]func(s tables, read *models.HandlerStatus) *gorm.DB{
	"Save":          func(s tables, read *models.HandlerStatus) *gorm.DB { return s.statuses().Save(read) },
	"Save by value": func(s tables, read *models.HandlerStatus) *gorm.DB { return s.statuses().Save(*read) },
	"Save of columns": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Select("completed_at", "outcome").Save(read)
	},
	"Save of a list": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Save([]*models.HandlerStatus{read})
	},
	"Save of an embedded": func(s tables, read *models.HandlerStatus) *gorm.DB {
		type mine struct{ models.HandlerStatus }
		return s.statuses().Save(&mine{*read})
	},
	"Updates":          func(s tables, read *models.HandlerStatus) *gorm.DB { return s.statuses().Select("*").Updates(read) },
	"Updates by value": func(s tables, read *models.HandlerStatus) *gorm.DB { return s.statuses().Select("*").Updates(*read) },
	"Updates of columns": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Model(read).Updates(map[string]any{"completed_at": nil, "outcome": "", "version": 77})
	},
	"Updates with a condition": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Model(&models.HandlerStatus{}).Select("*").Where("id = ?", read.ID).Updates(*read)
	},
	"Updates with an OR": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Model(read).Where("handler_key = 'h'").Or("handler_key = 'g'").Update("completed_at", nil)
	},
	"Updates of several": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Model([]models.HandlerStatus{*read, *read}).Update("completed_at", nil)
	},
	"UpdateColumn": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Model(read).UpdateColumn("completed_at", nil)
	},
	"UpdateColumns": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Select("completed_at").UpdateColumns(read)
	},
	"an upsert": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Clauses(clause.OnConflict{UpdateAll: true}).Create(read)
	},
	"an upsert of one column": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "message_number"}, {Name: "handler_key"}},
			DoUpdates: clause.AssignmentColumns([]string{"completed_at"})}).Create(read)
	},
	"Delete": func(s tables, read *models.HandlerStatus) *gorm.DB { return s.statuses().Delete(read) },
	"Delete by model": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Model(read).Delete(&models.HandlerStatus{})
	},
	"Delete of several": func(s tables, read *models.HandlerStatus) *gorm.DB {
		return s.statuses().Delete([]*models.HandlerStatus{read})
	},
	"generic Updates": func(s tables, read *models.HandlerStatus) *gorm.DB {
		n, err := gorm.G[models.HandlerStatus](s.db, s.naming).Select("*").Updates(s.Context(), *read)
		return &gorm.DB{RowsAffected: int64(n), Error: err}
	},
	"a generic upsert": func(s tables, read *models.HandlerStatus) *gorm.DB {
		result := gorm.WithResult()
		upsert := clause.OnConflict{UpdateAll: true}
		err := gorm.G[models.HandlerStatus](s.db, s.naming, result, upsert).Create(s.Context(), read)
		return &gorm.DB{RowsAffected: result.RowsAffected, Error: err}
	},
}

// onEveryWrite runs a test with each way to write on every driver, under the default names also in
// each session.
func onEveryWrite(t *testing.T, run func(s tables, write func(s tables, read *models.HandlerStatus) *gorm.DB)) {
	onEveryDriver(t, func(s tables) {
		for session, db := range sessions(s.db) {
			if session != "plain" && (s.naming != models.Naming{}) {
				continue
			}
			for name, write := range writes {
				s.Run(session+"/"+name, func(t *testing.T) { run(tables{T: t, db: db, naming: s.naming}, write) })
			}
		}
	})
}

// TestStaleStatusIsNotWritten proves contract 3.2, 3.4: a write that lost a race
// changes nothing.
func TestStaleStatusIsNotWritten(t *testing.T) {
	onEveryWrite(t, func(s tables, write func(s tables, read *models.HandlerStatus) *gorm.DB) {
		stale := s.add(uuid.NewString())
		s.complete(stale.ID)
		before := s.read(stale.ID)
		version := stale.Version

		result := write(s, &stale)
		require.NoError(s, result.Error)
		require.Zero(s, result.RowsAffected)
		require.Equal(s, before, s.read(stale.ID))
		require.LessOrEqual(s, stale.Version, version, "a second try is as late")
	})
}

func TestStatusWithoutVersionIsNotSaved(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		stale := s.add(uuid.NewString())
		s.complete(stale.ID)
		before := s.read(stale.ID)
		stale.Version = 0
		result := s.statuses().Save(&stale)
		require.NoError(s, result.Error)
		require.Zero(s, result.RowsAffected)
		require.Equal(s, before, s.read(stale.ID))
	})
}

func TestDeletedStatusIsNotWrittenAgain(t *testing.T) {
	onEveryWrite(t, func(s tables, write func(s tables, read *models.HandlerStatus) *gorm.DB) {
		stale := s.add(uuid.NewString())
		require.NoError(s, s.statuses().Delete(&models.HandlerStatus{}, "id = ?", stale.ID).Error)
		result := write(s, &stale)
		require.NoError(s, result.Error)
		require.Zero(s, result.RowsAffected)
		var left int64
		require.NoError(s, s.statuses().Where("id = ?", stale.ID).Count(&left).Error)
		require.Zero(s, left)
	})
}

func TestUnchangedStatusIsWritten(t *testing.T) {
	onEveryWrite(t, func(s tables, write func(s tables, read *models.HandlerStatus) *gorm.DB) {
		status, other := s.add(uuid.NewString()), s.add(uuid.NewString())
		id := status.ID
		result := write(s, &status)
		require.NoError(s, result.Error)
		require.EqualValues(s, 1, result.RowsAffected)
		var left []models.HandlerStatus
		require.NoError(s, s.statuses().Find(&left, "id = ?", id).Error)
		for _, row := range left {
			require.EqualValues(s, 2, row.Version)
		}
		require.Equal(s, other, s.read(other.ID))
	})
}

// TestVersionWithoutIDWritesNoOtherStatus covers a status of which only some columns were read:
// many rows have the same version.
func TestVersionWithoutIDWritesNoOtherStatus(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		first, second := s.add("1"), s.add("2")
		var part models.HandlerStatus
		require.NoError(s, s.statuses().Select("version", "error_count").Take(&part).Error)
		require.ErrorIs(s, s.statuses().Model(&part).Update("error_count", 7).Error, gorm.ErrMissingWhereClause)
		require.ErrorIs(s, s.statuses().Delete(&part).Error, gorm.ErrMissingWhereClause)
		require.Equal(s, first, s.read(first.ID))
		require.Equal(s, second, s.read(second.ID))

		result := s.statuses().Model(&part).Where("message_id = '1'").Update("error_count", 7)
		require.NoError(s, result.Error)
		require.EqualValues(s, 1, result.RowsAffected)
		result = s.statuses().Model(&part).Where("message_id = '1'").Update("error_count", 7)
		require.NoError(s, result.Error)
		require.EqualValues(s, 1, result.RowsAffected, "the caller's version goes on")
	})
}

// TestPartialKeyWritesNoOtherStatus covers statuses of which only part of the key was read.
func TestPartialKeyWritesNoOtherStatus(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		first, second := s.add("1"), s.add("2")
		for _, part := range []string{"handler_key", "message_number"} {
			var read models.HandlerStatus
			require.NoError(s, s.statuses().Select(part, "version").Take(&read, "id = ?", first.ID).Error)
			require.ErrorIs(s, s.statuses().Model(&read).Update("error_count", 7).Error, gorm.ErrPrimaryKeyRequired)
			require.ErrorIs(s, s.statuses().Delete(&read).Error, gorm.ErrPrimaryKeyRequired)
		}
		require.Equal(s, first, s.read(first.ID))
		for i, read := range []models.HandlerStatus{{ID: first.ID, Version: 1}, {ID: first.ID, HandlerKey: "h", Version: 2}} {
			result := s.statuses().Model(&read).Where("error_count < 7").Update("error_count", i+1)
			require.NoError(s, result.Error)
			require.EqualValues(s, 1, result.RowsAffected)
			require.Equal(s, i+1, s.read(first.ID).ErrorCount)
		}
		require.Equal(s, second, s.read(second.ID))
	})
}

// TestRelatedStatusObeysItsVersion covers a relation to a status, which GORM upserts with
// its owner. GORM does not report its RowsAffected.
func TestRelatedStatusObeysItsVersion(t *testing.T) {
	type Parcel struct {
		ID       int
		StatusID string                `gorm:"type:uuid"`
		Status   *models.HandlerStatus `gorm:"foreignKey:StatusID;references:ID"`
	}
	onEveryDriver(t, func(s tables) {
		if (s.naming != models.Naming{}) {
			return // GORM reads and writes another model's relations under the default names
		}
		require.NoError(s, s.db.Exec(`CREATE TABLE parcels (id integer PRIMARY KEY, status_id varchar(36))`).Error)
		stale := s.add("1")
		fresh := s.read(stale.ID)
		fresh.ErrorCount = 3
		save := func(id int, status *models.HandlerStatus) {
			require.NoError(s, s.db.Session(&gorm.Session{FullSaveAssociations: true}).
				Create(&Parcel{ID: id, Status: status}).Error)
		}
		save(1, &fresh)
		require.Equal(s, 3, s.read(stale.ID).ErrorCount)
		require.EqualValues(s, 2, s.read(stale.ID).Version)
		save(2, &stale)
		require.Equal(s, 3, s.read(stale.ID).ErrorCount)
	})
}

func TestWrittenStatusRaisesItsVersion(t *testing.T) {
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
		again := []models.HandlerStatus{fresh, stale, other}
		result := s.statuses().Model(&again).Update("error_count", 8)
		require.NoError(s, result.Error)
		require.EqualValues(s, 2, result.RowsAffected)
		require.Equal(s, 8, s.read(fresh.ID).ErrorCount)
		require.EqualValues(s, 2, s.read(other.ID).Version)
		require.Zero(s, s.read(stale.ID).ErrorCount)
		require.NotNil(s, s.read(stale.ID).CompletedAt)

		again = []models.HandlerStatus{s.read(fresh.ID), stale, s.read(other.ID)}
		result = s.statuses().Delete(&again)
		require.NoError(s, result.Error)
		require.EqualValues(s, 2, result.RowsAffected)
		require.NotNil(s, s.read(stale.ID).CompletedAt)
	})
}

// TestSeveralReadStatusesAreNotUpserted covers an INSERT of several rows. GORM would assign
// what the INSERT returns to the wrong ones.
func TestSeveralReadStatusesAreNotUpserted(t *testing.T) {
	onEveryDriver(t, func(s tables) {
		first, second := s.add("1"), s.add("2")
		for _, write := range []func() *gorm.DB{
			func() *gorm.DB { return s.statuses().Save([]models.HandlerStatus{first, second}) },
			func() *gorm.DB {
				return s.statuses().Clauses(clause.OnConflict{UpdateAll: true}).Create([]*models.HandlerStatus{&first, {}})
			},
		} {
			require.ErrorContains(s, write().Error, "save each by itself")
		}
		require.Equal(s, first, s.read(first.ID))
	})
}

// TestUpdateByConditionRaisesEachVersion covers an update by a condition alone, which has read no
// version that it could compare.
func TestUpdateByConditionRaisesEachVersion(t *testing.T) {
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

func TestNewStatusCanBeSaved(t *testing.T) {
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
