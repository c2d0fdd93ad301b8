package mysql

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/mysql/mysqldialect"
)

// facts are what a server says of itself.
type facts struct {
	// version is VERSION(), and comment @@version_comment. Vitess has its own version in the comment, and may be set to
	// say the version of another server.
	version, comment string
	sqlMode          string            // of the session
	variables        map[string]string // some global ones, in upper case; a server lacks those that it does not know
	shards           int               // of the Vitess keyspace that has the tables
	otherEngines     []string          // tables of the inbox that InnoDB does not keep
	readsUTC         bool              // the driver reads times as UTC, in winter and in summer
	charset          string            // of what this connection sends
	keepsOpen        bool              // autocommit is off: each statement begins a transaction that stays open
	ordered          bool              // some handler is ordered
}

// decision is what follows from facts.
type decision struct {
	applies func(facts) bool
	refused bool // otherwise warned of
	message string
}

// decisions are those of a start. The first refusal counts.
var decisions = []decision{
	{facts.isTiDB, true, "TiDB ignores FOR UPDATE SKIP LOCKED, so that several workers would claim one message: use MySQL 8.0.19, MariaDB 10.6 or PostgreSQL"},
	{func(f facts) bool { return f.isVitess() && f.before(19, 0, 0) }, true, "Vitess before 19 has no SKIP LOCKED, which claims need: upgrade it to 19 or later"},
	{func(f facts) bool { return f.isVitess() && f.shards > 1 }, true, "the Vitess keyspace is sharded, where a transaction over several shards can be committed in part: give each shard an inbox, or use an unsharded keyspace"},
	{func(f facts) bool { return f.isMariaDB() && f.before(10, 6, 0) }, true, "MariaDB before 10.6 has no SKIP LOCKED, which claims need: upgrade it to 10.6 or later"},
	{func(f facts) bool { return f.isMySQL() && f.before(8, 0, 19) }, true, "MySQL before 8.0.19 lacks what the tables and statements need: upgrade it to 8.0.19 or later"},
	{func(f facts) bool { return len(f.otherEngines) > 0 }, true, "some tables are not kept by InnoDB and have no transactions: convert them with ALTER TABLE ... ENGINE=InnoDB"},
	{func(f facts) bool { return !strings.Contains(f.sqlMode, "STRICT_") }, true, "sql_mode is not strict, so that the server would cut values instead of refusing them: add STRICT_TRANS_TABLES to sql_mode"},
	{func(f facts) bool { return strings.Contains(f.sqlMode, "NO_BACKSLASH_ESCAPES") }, true, "sql_mode has NO_BACKSLASH_ESCAPES, so that a text could hide a COMMIT from the guard of handlers: remove it from sql_mode"},
	{func(f facts) bool { return f.keepsOpen }, true, "autocommit is off for this connection, so that each read would leave a transaction open: remove autocommit from the DSN, or init_connect"},
	{func(f facts) bool { return !f.readsUTC }, true, "times are stored in UTC, and this connection reads them as others: add parseTime=true&loc=UTC to the DSN"},
	{func(f facts) bool { return f.charset != "utf8mb4" }, true, "this connection does not send texts as utf8mb4, so that the server refuses some of them: add charset=utf8mb4 to the DSN"},
	{func(f facts) bool { return f.variables["INNODB_ROLLBACK_ON_TIMEOUT"] == "ON" }, true, "innodb_rollback_on_timeout is ON, so that a handler which goes on after a lock timeout would write outside of its transaction: set it to OFF"},
	{func(f facts) bool {
		return f.variables["LOG_BIN"] == "ON" && f.variables["BINLOG_FORMAT"] == "STATEMENT"
	}, true, "binlog_format is STATEMENT, with which the server refuses to write at READ COMMITTED: set it to ROW"},
	{func(f facts) bool { return f.severalWriters() && f.ordered }, true, "several nodes of this cluster may write, and then messages are not numbered in the order of acceptance, which Ordered needs: use one server, or a group with a single primary"},
	{facts.severalWriters, false, "inbox: several nodes of this cluster may write, where claims of one row fail on all nodes but one: let one node write"},
	{facts.isVitess, false, "inbox: Vitess ends transactions and statements at limits of its tablets, which no statement can read: see docs/mysql.md"},
	{facts.hasSmallPackets, false, "inbox: max_allowed_packet is below 64M, so that the largest messages cannot be stored and halt their partitions: set it to 64M, and maxAllowedPacket=0 in the DSN"},
	{func(f facts) bool { return f.differs("INNODB_FLUSH_LOG_AT_TRX_COMMIT", "1") }, false, "inbox: innodb_flush_log_at_trx_commit is not 1, so that a crash of the machine can lose messages whose offsets are committed: set it to 1"},
	{func(f facts) bool { return f.variables["LOG_BIN"] == "ON" && f.differs("SYNC_BINLOG", "1") }, false, "inbox: sync_binlog is not 1, so that a crash of the machine can lose messages on replicas: set it to 1"},
	{facts.showsUnreplicated, false, "inbox: the semi-synchronous wait point is AFTER_COMMIT, so that a message found to be a duplicate may be on no replica yet, and a failover can lose it: set it to AFTER_SYNC"},
}

// wantedPacket is enough for the largest record, whose bytes may be escaped.
const wantedPacket = 64 << 20

func (f facts) hasSmallPackets() bool {
	size, err := strconv.Atoi(f.variables["MAX_ALLOWED_PACKET"])
	return err == nil && size < wantedPacket
}

func (f facts) isTiDB() bool    { return strings.Contains(f.version, "TiDB") }
func (f facts) isMariaDB() bool { return strings.Contains(f.version, "MariaDB") }
func (f facts) isMySQL() bool   { return !f.isTiDB() && !f.isVitess() && !f.isMariaDB() }
func (f facts) isVitess() bool {
	return strings.Contains(f.version, "Vitess") || strings.Contains(f.comment, "(Git revision")
}

var versionOf = regexp.MustCompile(`(\d+)\.(\d+)\.(\d+)`)

// numbers returns the version: Vitess's own, and MariaDB's without what it puts before it for replicas.
func (f facts) numbers() (numbers [3]int) {
	text := strings.TrimPrefix(f.version, "5.5.5-")
	if f.isVitess() {
		text = f.comment
	}
	for i, part := range versionOf.FindStringSubmatch(text) {
		if i > 0 {
			numbers[i-1], _ = strconv.Atoi(part)
		}
	}
	return numbers
}

func (f facts) before(major, minor, patch int) bool {
	n := f.numbers()
	for i, floor := range []int{major, minor, patch} {
		if n[i] != floor {
			return n[i] < floor
		}
	}
	return false
}

// severalWriters reports whether other nodes may write: those of Galera always may.
func (f facts) severalWriters() bool {
	return f.variables["WSREP_ON"] == "ON" || f.variables["GROUP_REPLICATION_GROUP_NAME"] != "" &&
		f.variables["GROUP_REPLICATION_SINGLE_PRIMARY_MODE"] == "OFF"
}

// showsUnreplicated reports whether other sessions see a commit while it waits for a semi-synchronous replica.
func (f facts) showsUnreplicated() bool {
	for _, role := range []string{"MASTER", "SOURCE"} { // MariaDB and older MySQL, MySQL
		if f.variables["RPL_SEMI_SYNC_"+role+"_ENABLED"] == "ON" && f.variables["RPL_SEMI_SYNC_"+role+"_WAIT_POINT"] == "AFTER_COMMIT" {
			return true
		}
	}
	return false
}

func (f facts) differs(variable, wanted string) bool {
	value, known := f.variables[variable]
	return known && value != wanted
}

// decide returns the warnings of a start, or why it is refused.
func decide(f facts) (warnings []store.Warning, err error) {
	for _, d := range decisions {
		switch {
		case !d.applies(f):
		case d.refused:
			return nil, errors.New(d.message)
		default:
			warnings = append(warnings, store.Warning{Message: d.message})
		}
	}
	return warnings, nil
}

// These statements read no table of the inbox.
const (
	// versionSQL asks for nothing else: Vitess would pass a statement with more on to the MySQL behind it, and return the
	// version of that one.
	versionSQL = `SELECT VERSION(), @@version_comment`

	sessionSQL = `
SELECT COALESCE(DATABASE(), ''), @@sql_mode, @@character_set_client, @@autocommit = 0, CAST('2026-01-02 03:04:05' AS DATETIME), CAST('2026-07-02 03:04:05' AS DATETIME)`

	variablesSQL = `
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'wsrep_on',
	'max_allowed_packet', 'innodb_rollback_on_timeout', 'binlog_format', 'group_replication_group_name', 'group_replication_single_primary_mode',
	'rpl_semi_sync_master_enabled', 'rpl_semi_sync_master_wait_point', 'rpl_semi_sync_source_enabled', 'rpl_semi_sync_source_wait_point')`

	shardsSQL = `SHOW VITESS_SHARDS`

	otherEnginesSQL = `
SELECT table_name FROM information_schema.tables WHERE table_schema = COALESCE(?1, DATABASE()) AND table_name IN (?2, ?3) AND engine <> 'InnoDB'`
)

// CheckSettings refuses servers and connections that would lose messages, or what is stored of them.
func (s *Store) CheckSettings(ctx context.Context, ordered bool) ([]store.Warning, error) {
	f, err := s.facts(ctx)
	if err != nil {
		return nil, base.Doing("ask the server what it is", err)
	}
	f.ordered = ordered
	return decide(f)
}

func (s *Store) facts(ctx context.Context) (facts, error) {
	pool := s.Pool(ctx)
	versions, err := store.Query(ctx, pool, versionSQL, func(rows *sql.Rows, f *facts) error {
		return rows.Scan(&f.version, &f.comment)
	})
	if err != nil {
		return facts{}, err
	}
	f := versions[0]
	targets, err := store.Query(ctx, pool, sessionSQL, func(rows *sql.Rows, target *string) error {
		var winter, summer any
		err := rows.Scan(target, &f.sqlMode, &f.charset, &f.keepsOpen, &winter, &summer)
		f.readsUTC = isUTC(winter) && isUTC(summer)
		return err
	})
	if err != nil {
		return facts{}, err
	}
	variables, err := store.Query(ctx, pool, variablesSQL, func(rows *sql.Rows, v *[2]string) error {
		return rows.Scan(&v[0], &v[1])
	})
	if err != nil {
		return facts{}, err
	}
	f.variables = map[string]string{}
	for _, v := range variables {
		f.variables[strings.ToUpper(v[0])] = strings.ToUpper(v[1])
	}
	schema, messages := s.table(s.Text("{messages}"))
	_, statuses := s.table(s.Text("{statuses}"))
	target := targets[0]
	if schema != nil {
		target = schema.(string)
	}
	// A session that names a shard, such as shop:-80, uses that one alone. What it asks goes to a tablet.
	if f.isVitess() && !strings.ContainsAny(target, ":/[") {
		shards, err := store.Query(ctx, pool, shardsSQL, store.Value[string])
		if err != nil {
			return facts{}, err
		}
		f.shards = shardsOf(target, shards)
	}
	f.otherEngines, err = store.Query(ctx, pool, otherEnginesSQL, store.Value[string], schema, messages, statuses)
	return f, err
}

// shardsOf counts the shards of a session's keyspace, such as shop or shop@primary, among those of all keyspaces, which
// are like shop/-80.
func shardsOf(target string, all []string) (shards int) {
	keyspace, _, _ := strings.Cut(target, "@")
	for _, shard := range all {
		if strings.HasPrefix(shard, keyspace+"/") {
			shards++
		}
	}
	return shards
}

func isUTC(value any) bool {
	read, parsed := value.(time.Time)
	_, offset := read.Zone()
	return parsed && offset == 0
}

// table returns the schema, nil if there is none, and the name of a quoted name.
func (s *Store) table(quoted string) (schema any, name string) {
	name = strings.ReplaceAll(quoted, `"`, "")
	if before, after, found := strings.Cut(name, "."); found {
		return before, after
	}
	return nil, name
}

// probeSQL locks a row that every inbox has.
const probeSQL = `SELECT "key" FROM {meta} WHERE "key" = 'schema_version' FOR UPDATE SKIP LOCKED`

// CheckIsolation refuses a database that gives one row to two claims. It warns of nothing: the default level is
// REPEATABLE READ everywhere, and each transaction states its own. It does not find out where the pool has not two
// connections in time, or the user may not lock this row.
func (s *Store) CheckIsolation(ctx context.Context, _ sql.IsolationLevel) ([]store.Warning, error) {
	_, err := base.Probe(ctx, s.DB, func(ctx context.Context) error {
		return base.ProbeLocks(ctx, s.Transaction, func(ctx context.Context, pool gorm.ConnPool) (bool, error) {
			locked, err := store.Query(ctx, pool, s.Text(probeSQL), store.Value[string])
			if number, _, _ := mysqldialect.Code(err); number == accessDenied {
				return false, nil
			}
			return len(locked) > 0, err
		})
	})
	return nil, err
}

// accessDenied means that the user lacks a right on a table.
const accessDenied = 1142
