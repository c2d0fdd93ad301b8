package processor_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/processor"
)

func TestSwallowedSQLErrorIsAFailureUnlessASavepointUndidIt(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *gorm.DB{"sqlite": testenv.SQLite, "postgres": testenv.Postgres} {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			require.NoError(t, db.Exec("CREATE TABLE effects(id varchar(100) primary key)").Error)
			ib, err := inbox.New("orders", db, inbox.Configure(func(o *inbox.Options) {
				o.Migrate = true
				o.Processor.MaxRetries = 1
			}),
				inbox.Channel("c", inbox.On("t",
					inbox.Tx("swallow", func(ctx context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
						_ = tx.Exec("INSERT INTO effects VALUES ('a')").Error
						_ = tx.Exec("INSERT INTO effects VALUES ('a')").Error
						return nil
					}),
					inbox.Tx("nested", func(ctx context.Context, tx *gorm.DB, m handler.Message[[]byte]) error {
						if err := tx.Exec("INSERT INTO effects VALUES ('b')").Error; err != nil {
							return err
						}
						err := tx.Transaction(func(tx *gorm.DB) error {
							return tx.Exec("INSERT INTO effects VALUES ('b')").Error
						})
						if err == nil {
							return errors.New("no error")
						}
						return tx.Exec("INSERT INTO effects VALUES ('c')").Error
					}),
				)))
			require.NoError(t, err)
			require.NoError(t, ib.Migrate(context.Background()))
			_, err = ib.Accept(context.Background(), handler.RawMessage{Channel: "c", ID: "1", Type: "t"})
			require.NoError(t, err)
			d, err := ib.ProcessPending(context.Background())
			require.NoError(t, err)
			require.Equal(t, processor.Drained{Picked: 2, Completed: 1, Poisoned: 1}, d)
			var ids []string
			require.NoError(t, db.Raw("SELECT id FROM effects ORDER BY id").Scan(&ids).Error)
			require.Equal(t, []string{"b", "c"}, ids)
		})
	}
}
