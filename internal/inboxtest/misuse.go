package inboxtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
)

// Item is a row with a unique name and a key that the database assigns.
type Item struct {
	ID   int64 `gorm:"primaryKey;autoIncrement"`
	Name string
}

// Items makes the table of items, with one item named "taken".
func Items(t testing.TB, d *Database) {
	t.Helper()
	Exec(t, d.DB, "CREATE TABLE items (id "+of(t, d.Dialect).identity+", name text NOT NULL UNIQUE)")
	Exec(t, d.DB, "INSERT INTO items (name) VALUES ('taken')")
}

// ItemNames returns the names of all items except "taken".
func ItemNames(t testing.TB, d *Database) []string {
	t.Helper()
	names := []string{}
	require.NoError(t, d.DB.Raw("SELECT name FROM items WHERE name <> 'taken' ORDER BY name").Scan(&names).Error)
	return names
}

const takenAgain = "INSERT INTO items (name) VALUES ('taken') RETURNING id"

// FailedWrites returns writes that fail, one for each way to use the database.
func FailedWrites() map[string]func(tx *gorm.DB) error {
	create := func(tx *gorm.DB) error { return tx.Create(&Item{Name: "taken"}).Error }
	return map[string]func(tx *gorm.DB) error{
		"Create": create,
		"Exec":   func(tx *gorm.DB) error { return tx.Exec(takenAgain).Error },
		"Scan":   func(tx *gorm.DB) error { var ids []int64; return tx.Raw(takenAgain).Scan(&ids).Error },
		"Scan of a row after the first": func(tx *gorm.DB) error {
			var numbers []int64
			return tx.Raw("SELECT abs(n) FROM (SELECT 1 AS n UNION ALL SELECT -9223372036854775807 - 1) AS numbers").Scan(&numbers).Error
		},
		"Row": func(tx *gorm.DB) error { return tx.Raw(takenAgain).Row().Scan(new(int64)) },
		"Rows": func(tx *gorm.DB) error {
			rows, err := tx.Raw(takenAgain).Rows()
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				_ = rows.Scan(new(int64))
			}
			return rows.Err()
		},
		"a generic Create": func(tx *gorm.DB) error {
			return gorm.G[Item](tx).Create(tx.Statement.Context, &Item{Name: "taken"})
		},
		"a generic Exec": func(tx *gorm.DB) error { return gorm.G[Item](tx).Exec(tx.Statement.Context, takenAgain) },
		"a generic Find": func(tx *gorm.DB) error {
			_, err := gorm.G[Item](tx).Where("name = nothing()").Find(tx.Statement.Context)
			return err
		},
		"the connection's QueryRow": func(tx *gorm.DB) error {
			return tx.Statement.ConnPool.QueryRowContext(tx.Statement.Context, takenAgain).Scan(new(int64))
		},
		"a session with PrepareStmt": func(tx *gorm.DB) error { return create(tx.Session(&gorm.Session{PrepareStmt: true})) },
		"a nested transaction that goes on": func(tx *gorm.DB) error {
			return tx.Transaction(func(tx *gorm.DB) error { _ = create(tx); return nil })
		},
		"a statement whose context has ended": func(tx *gorm.DB) error {
			ended, end := context.WithCancel(tx.Statement.Context)
			end()
			return tx.WithContext(ended).Exec("SELECT 1").Error
		},
		"a statement that cannot be prepared": func(tx *gorm.DB) error {
			_, err := tx.Statement.ConnPool.PrepareContext(tx.Statement.Context, "SELECT nothing FROM nowhere")
			return err
		},
	}
}

// TransactionControls returns the ways to end tx's transaction or to begin another.
func TransactionControls() map[string]func(tx *gorm.DB) error {
	ways := map[string]func(tx *gorm.DB) error{
		"the connection": func(tx *gorm.DB) error {
			_, err := tx.Statement.ConnPool.ExecContext(tx.Statement.Context, "COMMIT")
			return err
		},
		"a query": func(tx *gorm.DB) error {
			rows, err := tx.Raw("COMMIT").Rows()
			if err == nil {
				rows.Next()
				err = rows.Close()
			}
			return err
		},
		"a prepared statement": func(tx *gorm.DB) error {
			stmt, err := tx.Statement.ConnPool.PrepareContext(tx.Statement.Context, "COMMIT")
			if err == nil {
				_, err = stmt.ExecContext(tx.Statement.Context)
			}
			return err
		},
		"a session with PrepareStmt": func(tx *gorm.DB) error {
			return tx.Session(&gorm.Session{PrepareStmt: true}).Exec("COMMIT").Error
		},
		"GORM's Commit":   func(tx *gorm.DB) error { return tx.Commit().Error },
		"GORM's Rollback": func(tx *gorm.DB) error { return tx.Rollback().Error },
	}
	for _, text := range []string{
		"SELECT 1; COMMIT", "INSERT INTO items (name) VALUES (';'); COMMIT; BEGIN", "SAVEPOINT a; ROLLBACK",
	} {
		ways[text] = func(tx *gorm.DB) error { return tx.Exec(text).Error }
	}
	return ways
}
