package models

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/dialect"
	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/session"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgxtx"
)

var (
	// ErrSchemaMissing means that the inbox's tables do not exist.
	ErrSchemaMissing = errors.New("inbox tables are missing")
	// ErrSchemaOld means that the tables are older than this module needs, or of another commit.
	ErrSchemaOld = errors.New("inbox tables are out of date")
	// ErrOtherInbox means that the tables belong to an inbox of another name.
	ErrOtherInbox = errors.New("inbox tables belong to another inbox")
)

// remedy ends every message about a schema.
const remedy = "set option Migrate, call Inbox.Migrate or models.Migrate, run inboxctl migrate up --inbox NAME, or run the SQL of models.SQL"

// CheckSchema returns nil if the tables of naming exist, are new enough for this module and belong to the inbox called
// inboxName (contract 3.3, 3.4). Newer tables are allowed, for rolling deploys. Tables without a name, made by the
// plain SQL, get this name. CheckSchema writes nothing else. Errors wrap ErrSchemaMissing, ErrSchemaOld or
// ErrOtherInbox and name what to run. It is safe for concurrent use.
func CheckSchema(ctx context.Context, db *gorm.DB, naming Naming, inboxName string) error {
	found, d, err := checked(ctx, db, naming)
	if err != nil || found.meta["id"] != "" && found.meta["name"] == inboxName {
		return err // the tables are already named, as always after the first start
	}
	claim := func(tx *gorm.DB) error { return claimName(ctx, d.Runs(tx.Statement.ConnPool), naming, inboxName) }
	db = db.Session(&gorm.Session{NewDB: true, Context: ctx})
	// The insert of the name waits for another start's insert. Above READ COMMITTED, which may be the sessions'
	// default, it would fail once the other one commits.
	return pgxtx.Session(db, pgxtx.ByDeadline).Transaction(claim, &sql.TxOptions{Isolation: d.Stated})
}

// CheckTables is CheckSchema for callers that may use the tables of any inbox, as operators and the markers of inline
// receivers may. It only reads. If there are no tables, the error also says in which database it looked, and names up
// to ten inboxes that are there: a wrong schema or prefix is more likely than a new inbox.
func CheckTables(ctx context.Context, db *gorm.DB, naming Naming) error {
	f, d, err := checked(ctx, db, naming)
	if d != nil && f.version == 0 && errors.Is(err, ErrSchemaMissing) {
		pool := poolOf(ctx, db)
		return fmt.Errorf("%w (%s): %s Only for a new inbox: %s", ErrSchemaMissing, naming.describe(),
			elsewhere(ctx, pool, d, naming), remedy)
	}
	return err
}

// checked returns what it found of the tables, or why they cannot be used.
func checked(ctx context.Context, db *gorm.DB, naming Naming) (found, *dialect.Dialect, error) {
	migrations, err := migrationsOf(db, naming)
	if err != nil {
		return found{}, nil, err
	}
	d, err := dialects.Of(db)
	if err != nil {
		return found{}, nil, err
	}
	f, err := look(ctx, poolOf(ctx, db), d, naming)
	if err == nil {
		err = f.check(migrations, naming)
	}
	return f, d, err
}

// poolOf returns the pool of a session for statements of all databases.
func poolOf(ctx context.Context, db *gorm.DB) gorm.ConnPool {
	pool := db.Session(&gorm.Session{NewDB: true, Context: ctx}).Statement.ConnPool
	if d, err := dialects.Of(db); err == nil {
		return d.Runs(pool)
	}
	return pool
}

// migrationsOf returns the migrations of db's dialect, or why db cannot be used.
func migrationsOf(db *gorm.DB, naming Naming) ([]Migration, error) {
	if err := session.Check(db); err != nil {
		return nil, err
	}
	return SQL(db.Dialector.Name(), naming)
}

// check returns an error unless the migrations have made the tables, all of them, from the same text.
func (f found) check(migrations []Migration, naming Naming) error {
	wanted := migrations[len(migrations)-1].Version
	missing, lacking := f.compare(naming)
	switch {
	case f.version == 0:
		return fmt.Errorf("%w (%s): %s", ErrSchemaMissing, naming.describe(), remedy)
	case f.version < wanted:
		return fmt.Errorf("%w (%s): version %d, needed %d: %s", ErrSchemaOld, naming.describe(), f.version, wanted, remedy)
	case len(missing) > 0:
		return fmt.Errorf("%w (%s): there is no %s beside %s: restore them, or, to have them empty, "+
			"delete the row schema_version of %[4]s and migrate", ErrSchemaMissing, naming.describe(),
			strings.Join(missing, ", "), naming.Meta())
	}
	for _, migration := range migrations {
		if hash := f.meta[migration.hashKey()]; hash != migration.hash {
			lacking = append(lacking, fmt.Sprintf("%s is %q, needed %q", migration.hashKey(), hash, migration.hash))
		}
	}
	if len(lacking) > 0 {
		return fmt.Errorf("%w (%s): another commit of this module made them: %s: drop them, or change them to what "+
			"models.SQL returns and delete the rows schema_version and hash_0001 of %s, then migrate",
			ErrSchemaOld, naming.describe(), strings.Join(lacking, "; "), naming.Meta())
	}
	return nil
}

// found says which of an inbox's tables a database has.
type found struct {
	columns map[string][]string // of each table, by its name without schema and prefix, in lower case
	later   map[string]bool     // tables of a later schema of the search path, which CREATE TABLE ignores
	wanted  map[string][]string // the columns that each table must have
	meta    map[string]string   // of the keys that migrations write, and of the inbox's name and ID
	version int                 // 0 if there is no schema, or an unfinished one
}

// look reads the existing tables, without a statement that could fail: on PostgreSQL that would abort the caller's
// transaction.
func look(ctx context.Context, pool gorm.ConnPool, d *dialect.Dialect, naming Naming) (found, error) {
	f := found{columns: map[string][]string{}, later: map[string]bool{}, wanted: maps.Clone(modelColumns())}
	for table, more := range d.Columns {
		f.wanted[table] = slices.Concat(f.wanted[table], more)
	}
	tables := map[string]string{}
	for table := range f.wanted {
		tables[table] = naming.table(table)
	}
	err := each(ctx, pool, d.ColumnsSQL(tables, naming.Schema), func(rows *sql.Rows) error {
		var table, column string
		var later bool
		err := rows.Scan(&table, &column, &later)
		f.columns[table] = append(f.columns[table], column)
		f.later[table] = later
		return err
	})
	if err != nil {
		return f, fmt.Errorf("find the tables of the inbox (%s): %w", naming.describe(), err)
	}
	if !slices.Contains(f.columns["meta"], "key") || !slices.Contains(f.columns["meta"], "value") {
		return f, nil
	}
	if f.meta, err = metaValues(ctx, pool, naming); err != nil {
		return f, err
	}
	if text, stored := f.meta["schema_version"]; stored {
		if f.version, err = strconv.Atoi(text); err != nil {
			return f, fmt.Errorf("schema_version %q in %s is not a number", text, naming.Meta())
		}
	}
	return f, nil
}

// compare returns the tables that are missing, and which columns the others lack.
func (f found) compare(naming Naming) (missing, lacking []string) {
	for _, table := range slices.Sorted(maps.Keys(f.wanted)) {
		have, exists := f.columns[table]
		if !exists {
			missing = append(missing, naming.table(table))
			continue
		}
		absent := slices.DeleteFunc(slices.Clone(f.wanted[table]), func(c string) bool { return slices.Contains(have, c) })
		if len(absent) > 0 {
			lacking = append(lacking, naming.table(table)+" lacks "+strings.Join(absent, ", "))
		}
	}
	return missing, lacking
}

// modelColumns returns the columns of each table, by its name without schema and prefix.
var modelColumns = sync.OnceValue(func() map[string][]string {
	all := map[string][]string{}
	for _, row := range All() {
		parsed, err := schema.Parse(row, &sync.Map{}, schema.NamingStrategy{})
		if err != nil {
			panic(err) // the models are constants of this package
		}
		all[strings.TrimPrefix(parsed.Table, columns.DefaultPrefix)] = parsed.DBNames
	}
	return all
})

// Identity returns the name of the inbox to which the tables of naming belong, and an ID that no other tables have.
// Both are empty before CheckSchema or Migrate has named the tables. It only reads, and fails if there are no tables:
// call CheckTables first (contract 3.3).
func Identity(ctx context.Context, db *gorm.DB, naming Naming) (inboxName, id string, err error) {
	pool := poolOf(ctx, db)
	values, err := metaValues(ctx, pool, naming)
	return values["name"], values["id"], err
}

// claimName gives the tables their inbox's name and a new ID. If they have a name already, it must be the same. The
// insert decides between two concurrent starts. The name of the unnamed inbox is the empty string, stored like any
// other.
func claimName(ctx context.Context, pool gorm.ConnPool, naming Naming, inboxName string) error {
	values, err := metaValues(ctx, pool, naming)
	if err != nil {
		return err
	}
	stored, found := values["name"]
	if !found || stored == inboxName && values["id"] == "" {
		_, err := pool.ExecContext(ctx, `INSERT INTO `+columns.Quote(naming.Meta())+
			` ("key", "value") VALUES ('name', $1), ('id', $2) ON CONFLICT ("key") DO NOTHING`, inboxName, uuid.NewString())
		if err != nil {
			return fmt.Errorf("store the inbox's name in %s: %w", naming.Meta(), err)
		}
		if values, err = metaValues(ctx, pool, naming); err != nil {
			return err
		}
		stored = values["name"]
	}
	if stored != inboxName {
		return fmt.Errorf("%w (%s): theirs is named %q, this one %q: give each inbox its own table prefix",
			ErrOtherInbox, naming.describe(), stored, inboxName)
	}
	return nil
}

// metaValues reads what is stored of the schema's version and of the inbox's name and ID.
func metaValues(ctx context.Context, pool gorm.ConnPool, naming Naming) (map[string]string, error) {
	values := map[string]string{}
	err := each(ctx, pool, `SELECT "key", "value" FROM `+columns.Quote(naming.Meta())+
		` WHERE "key" IN ('schema_version', 'name', 'id') OR "key" LIKE 'hash%'`, func(rows *sql.Rows) error {
		var key, value string
		err := rows.Scan(&key, &value)
		values[key] = value
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", naming.Meta(), err)
	}
	return values, nil
}

// one returns the first row of one column.
func one[T any](ctx context.Context, pool gorm.ConnPool, query string, args ...any) (value T, found bool, err error) {
	err = each(ctx, pool, query, func(rows *sql.Rows) error {
		found = true
		return rows.Scan(&value)
	}, args...)
	return value, found, err
}

// each calls scan for every row. It does not use QueryRowContext: with PrepareStmt, GORM's version returns a row that
// panics if preparing fails.
func each(ctx context.Context, pool gorm.ConnPool, query string, scan func(*sql.Rows) error, args ...any) error {
	rows, err := pool.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
