package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/pgxtx"
)

var (
	// ErrSchemaMissing means that the inbox's tables do not exist.
	ErrSchemaMissing = errors.New("inbox tables are missing")
	// ErrSchemaOld means that the tables are older than this module needs.
	ErrSchemaOld = errors.New("inbox tables are out of date")
	// ErrOtherInbox means that the tables belong to an inbox of another name.
	ErrOtherInbox = errors.New("inbox tables belong to another inbox")
)

// remedy ends every message about a schema.
const remedy = "set option Migrate, call Inbox.Migrate or models.Migrate, run inboxctl migrate up --inbox NAME, or run the SQL of models.SQL"

// CheckSchema returns nil if the tables of naming exist, are new enough for this module and belong
// to the inbox called inboxName (contract 3.3, 3.4). Newer tables are allowed, for rolling deploys.
// Tables without a name, made by the plain SQL, get this name. CheckSchema writes nothing else.
// Errors wrap ErrSchemaMissing, ErrSchemaOld or ErrOtherInbox and name what to run. It is safe for
// concurrent use.
func CheckSchema(ctx context.Context, db *gorm.DB, naming Naming, inboxName string) error {
	if err := CheckTables(ctx, db, naming); err != nil {
		return err
	}
	db = db.Session(&gorm.Session{NewDB: true, Context: ctx})
	claim := func(tx *gorm.DB) error { return claimName(ctx, tx.Statement.ConnPool, naming, inboxName) }
	if db.Dialector.Name() != "postgres" {
		return claim(db)
	}
	if name, id, err := Identity(ctx, db, naming); err != nil || id != "" && name == inboxName {
		return err // the tables are already named, as always after the first start
	}
	// The insert of the name waits for that of another start. Above READ COMMITTED, which may be
	// the sessions' default, it would fail once the other one commits.
	return pgxtx.Session(db, pgxtx.ByDeadline).Transaction(claim, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

// CheckTables is CheckSchema for callers that may use the tables of any inbox, as the markers of
// inline receivers may. It only reads.
func CheckTables(ctx context.Context, db *gorm.DB, naming Naming) error {
	migrations, err := SQL(db.Dialector.Name(), naming)
	if err != nil {
		return err
	}
	wanted := migrations[len(migrations)-1].Version
	pool := db.Session(&gorm.Session{NewDB: true, Context: ctx}).Statement.ConnPool

	found, err := schemaVersion(ctx, pool, db.Dialector.Name(), naming)
	switch {
	case err != nil:
		return err
	case found == 0:
		return fmt.Errorf("%w (%s): %s", ErrSchemaMissing, naming.describe(), remedy)
	case found < wanted:
		return fmt.Errorf("%w (%s): version %d, needed %d: %s", ErrSchemaOld, naming.describe(), found, wanted, remedy)
	}
	return nil
}

// schemaVersion returns the schema's version. It is 0 if there is no schema, or an unfinished one.
func schemaVersion(ctx context.Context, pool gorm.ConnPool, dialect string, naming Naming) (int, error) {
	// Look the table up instead of trying it: on PostgreSQL a failed statement would abort the
	// caller's transaction.
	lookup, argument := `SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = $1`, naming.Meta()
	if dialect == "postgres" {
		lookup, argument = `SELECT count(*) FROM (SELECT to_regclass($1) AS found) AS r WHERE found IS NOT NULL`,
			columns.Quote(naming.Meta())
	}
	tables, _, err := one[int](ctx, pool, lookup, argument)
	if err != nil {
		return 0, fmt.Errorf("find table %s: %w", naming.Meta(), err)
	}
	if tables == 0 {
		return 0, nil
	}
	text, found, err := metaValue(ctx, pool, naming, "schema_version")
	if err != nil || !found {
		return 0, err
	}
	version, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("schema_version %q in %s is not a number", text, naming.Meta())
	}
	return version, nil
}

// Identity returns the name of the inbox to which the tables of naming belong, and an ID that no
// other tables have. Both are empty before CheckSchema or Migrate has named the tables. It only
// reads, and fails if there are no tables: call CheckTables first (contract 3.3).
func Identity(ctx context.Context, db *gorm.DB, naming Naming) (inboxName, id string, err error) {
	pool := db.Session(&gorm.Session{NewDB: true, Context: ctx}).Statement.ConnPool
	if inboxName, _, err = metaValue(ctx, pool, naming, "name"); err != nil {
		return "", "", err
	}
	id, _, err = metaValue(ctx, pool, naming, "id")
	return inboxName, id, err
}

// claimName gives the tables their inbox's name and an ID of their own, unless they have a name,
// which then must be the same. The insert decides between two concurrent starts. The name of the
// unnamed inbox is the empty string, stored like any other.
func claimName(ctx context.Context, pool gorm.ConnPool, naming Naming, inboxName string) error {
	stored, found, err := metaValue(ctx, pool, naming, "name")
	if err != nil {
		return err
	}
	_, identified, err := metaValue(ctx, pool, naming, "id")
	if err != nil {
		return err
	}
	if !found || stored == inboxName && !identified {
		_, err := pool.ExecContext(ctx, `INSERT INTO `+columns.Quote(naming.Meta())+
			` ("key", "value") VALUES ('name', $1), ('id', $2) ON CONFLICT ("key") DO NOTHING`, inboxName, uuid.NewString())
		if err != nil {
			return fmt.Errorf("store the inbox's name in %s: %w", naming.Meta(), err)
		}
		if stored, _, err = metaValue(ctx, pool, naming, "name"); err != nil {
			return err
		}
	}
	if stored != inboxName {
		return fmt.Errorf("%w (%s): theirs is named %q, this one %q: give each inbox its own table prefix",
			ErrOtherInbox, naming.describe(), stored, inboxName)
	}
	return nil
}

func metaValue(
	ctx context.Context, pool gorm.ConnPool, naming Naming, key string,
) (value string, found bool, err error) {
	value, found, err = one[string](ctx, pool, `SELECT "value" FROM `+columns.Quote(naming.Meta())+` WHERE "key" = $1`, key)
	if err != nil {
		return "", false, fmt.Errorf("read %s from %s: %w", key, naming.Meta(), err)
	}
	return value, found, nil
}

// one returns the first row of one column. It does not use QueryRowContext: with PrepareStmt,
// GORM's version returns a row that panics if preparing fails.
func one[T any](ctx context.Context, pool gorm.ConnPool, query string, args ...any) (value T, found bool, err error) {
	rows, err := pool.QueryContext(ctx, query, args...)
	if err != nil {
		return value, false, err
	}
	defer rows.Close()
	if rows.Next() {
		found = true
		if err := rows.Scan(&value); err != nil {
			return value, false, err
		}
	}
	return value, found, rows.Err()
}
