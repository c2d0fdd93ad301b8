package inbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// twoInboxes are in one database: one with the default names, which accepted a message with the same
// ID and number as the other's, and one with other names.
func twoInboxes(t *testing.T, d *inboxtest.Database) (byDefault, other *inbox.Inbox) {
	t.Helper()
	byDefault = namedInbox(t, "default", d.DB)
	other = namedInbox(t, "other", d.DB, inbox.Configure(func(o *inbox.Options) {
		o.TablePrefix = "Other_"
		if d.Dialect == "postgres" {
			o.Schema = "Orders"
		}
	}))
	for _, ib := range []*inbox.Inbox{byDefault, other} {
		inboxtest.Accept(t, ib, "1")
		var m models.Message
		require.NoError(t, d.DB.Clauses(ib.Tables()).Take(&m).Error)
		require.EqualValues(t, 1, m.Number)
		m.Source = ib.Name()
		require.NoError(t, d.DB.Clauses(ib.Tables()).Save(&m).Error)
	}
	return byDefault, other
}

// TestTablesDirectEachModelToItsInbox proves contract 3.4.
func TestTablesDirectEachModelToItsInbox(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		byDefault, other := twoInboxes(t, d)
		require.NoError(t, other.Pause(t.Context(), "h-other"))
		for model, rows := range map[any][2]int64{
			&models.Message{}: {1, 1}, &models.HandlerStatus{}: {1, 1}, &models.RejectedMessage{}: {0, 0}, &models.Gap{}: {0, 0},
			&models.Lock{}: {0, 0}, &models.Worker{}: {0, 0}, &models.Handler{}: {0, 1}, &models.Marker{}: {0, 0},
			&models.Audit{}: {0, 0},
		} {
			for i, ib := range []*inbox.Inbox{byDefault, other} {
				var n int64
				require.NoError(t, d.DB.Clauses(ib.Tables()).Model(model).Count(&n).Error, "%T of %s", model, ib.Name())
				require.Equal(t, rows[i], n, "%T of %s", model, ib.Name())
			}
		}
		for _, ib := range []*inbox.Inbox{byDefault, other} {
			var names []models.Meta
			require.NoError(t, d.DB.Clauses(ib.Tables()).Where(map[string]any{"key": "name"}).Find(&names).Error)
			require.Equal(t, ib.Name(), names[0].Value)

			var statuses []models.HandlerStatus
			require.NoError(t, d.DB.Clauses(ib.Tables()).Preload("Message").Find(&statuses).Error)
			require.Equal(t, ib.Name(), statuses[0].Message.Source)
			require.NoError(t, d.DB.Clauses(ib.Tables()).Joins("Message").Find(&statuses).Error)
			require.Equal(t, ib.Name(), statuses[0].Message.Source)

			var sources []string
			accepted := d.DB.Clauses(ib.Tables()).Model(&models.HandlerStatus{}).Select("message_number")
			require.NoError(t, d.DB.Clauses(ib.Tables()).Model(&models.Message{}).Where("number IN (?)", accepted).
				Pluck("source", &sources).Error)
			require.Equal(t, []string{ib.Name()}, sources)

			statuses[0].ErrorCount = 5
			require.NoError(t, d.DB.Clauses(ib.Tables()).Save(&statuses[0]).Error)
			n, err := gorm.G[models.HandlerStatus](d.DB, ib.Tables()).Where("error_count = 5").Count(t.Context(), "*")
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
		}
	})
}

// TestTablesWithoutARowOfTheInboxAreRefused covers statements that would be about another table.
func TestTablesWithoutARowOfTheInboxAreRefused(t *testing.T) {
	type Order struct{ ID int }
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		_, ib := twoInboxes(t, d)
		var n int64
		for _, err := range []error{
			d.DB.Clauses(ib.Tables()).Find(&[]Order{}).Error,
			d.DB.Clauses(ib.Tables()).Model(&Order{}).Count(&n).Error,
			d.DB.Clauses(ib.Tables()).Count(&n).Error,
			d.DB.Clauses(ib.Tables()).Raw("SELECT 1").Scan(&n).Error,
			d.DB.Clauses(ib.Tables()).Exec("SELECT 1").Error,
			d.DB.Clauses(ib.Tables()).Where("id = 1").Updates(map[string]any{"id": 2}).Error,
			gorm.G[Order](d.DB, ib.Tables()).Create(t.Context(), &Order{}),
		} {
			require.ErrorContains(t, err, "name some by Model, as in Model(&models.HandlerStatus{})")
		}
		// GORM drops the error of a subquery. An empty one would be true of all rows on SQLite.
		without := d.DB.Clauses(ib.Tables()).Select("message_number").Where("is_poisoned")
		require.Error(t, d.DB.Clauses(ib.Tables()).Where("number NOT IN (?)", without).Delete(&models.Message{}).Error)
		require.Equal(t, 1, inboxtest.CountMessages(t, ib))
	})
}
