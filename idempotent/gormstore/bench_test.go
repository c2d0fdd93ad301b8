package gormstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/models"
)

// naive is the usual implementation: check whether it was done, do it, record that it was done. All
// of it is in one transaction, which is the better variant.
func naive(ctx context.Context, db *gorm.DB, id string) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		marker := models.Marker{MessageID: id, HandlerKey: "naive"}
		err := tx.Take(&models.Marker{}, "message_id = ? AND handler_key = ?", marker.MessageID, marker.HandlerKey).Error
		if err == nil {
			return nil
		}
		if !errors.Is(err, gorm.ErrRecordNotFound) {
			return err
		}
		if err := tx.Exec(`INSERT INTO effects VALUES (?)`, "naive "+id).Error; err != nil {
			return err
		}
		marker.MessageType, marker.ProcessedAt = "order.placed", time.Now()
		marker.ExpiresAt = marker.ProcessedAt.Add(time.Hour)
		return tx.Clauses(clause.OnConflict{DoNothing: true}).Create(&marker).Error
	})
}

func benched(b *testing.B) (db *gorm.DB, ours func(ctx context.Context, id string) error) {
	b.Helper()
	db = testenv.Postgres(b)
	require.NoError(b, models.Migrate(b.Context(), db, models.Naming{}, ""))
	require.NoError(b, db.Exec(`CREATE TABLE effects (message_id varchar(200) NOT NULL)`).Error)
	s := open(b, db)
	return db, func(ctx context.Context, id string) error {
		_, err := s.Run(ctx, idempotent.Run{Key: idempotent.Key{MessageID: id, HandlerKey: "ours"},
			MessageType: "order.placed", Retention: time.Hour}, effect("ours "+id, nil))
		return err
	}
}

// BenchmarkAgainstCheckThenAct alternates with the naive implementation on PostgreSQL, so that other
// load of the machine affects both: compare within one run.
func BenchmarkAgainstCheckThenAct(b *testing.B) {
	for name, id := range map[string]func(i int) string{
		"new":       func(i int) string { return fmt.Sprint(i) },
		"duplicate": func(int) string { return "0" },
	} {
		b.Run(name, func(b *testing.B) {
			db, ours := benched(b)
			require.NoError(b, ours(b.Context(), "0"))
			require.NoError(b, naive(b.Context(), db, "0"))
			var oursTook, naiveTook time.Duration
			b.ResetTimer()
			for i := range b.N {
				began := time.Now()
				require.NoError(b, ours(b.Context(), id(i)))
				between := time.Now()
				require.NoError(b, naive(b.Context(), db, id(i)))
				oursTook, naiveTook = oursTook+between.Sub(began), naiveTook+time.Since(between)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(oursTook.Microseconds())/float64(b.N), "ours-µs/op")
			b.ReportMetric(float64(naiveTook.Microseconds())/float64(b.N), "naive-µs/op")
			b.ReportMetric(float64(oursTook)/float64(naiveTook), "ours/naive")
		})
	}
}

// BenchmarkDoubledEffects delivers each message to four consumers at once and counts the effects
// that happened more than once.
func BenchmarkDoubledEffects(b *testing.B) {
	db, ours := benched(b)
	for name, handle := range map[string]func(ctx context.Context, id string) error{
		"ours": ours, "naive": func(ctx context.Context, id string) error { return naive(ctx, db, id) },
	} {
		b.Run(name, func(b *testing.B) {
			require.NoError(b, db.Exec(`TRUNCATE effects, inbox_markers`).Error)
			for i := range b.N {
				var consumers sync.WaitGroup
				problems := make([]error, 4)
				for c := range problems {
					consumers.Add(1)
					go func() {
						defer consumers.Done()
						problems[c] = handle(b.Context(), fmt.Sprint(i))
					}()
				}
				consumers.Wait()
				require.NoError(b, errors.Join(problems...))
			}
			var effects, distinct int
			require.NoError(b, db.Raw(`SELECT count(*) FROM effects`).Scan(&effects).Error)
			require.NoError(b, db.Raw(`SELECT count(DISTINCT message_id) FROM effects`).Scan(&distinct).Error)
			require.Equal(b, b.N, distinct)
			b.ReportMetric(1000*float64(effects-distinct)/float64(b.N), "doubled/1000")
		})
	}
}
