package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/brief"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
	"github.com/gorm-inbox/inbox/internal/store/postgres/pgdialect"
	"github.com/gorm-inbox/inbox/internal/telemetry"
)

// profile says which form of a few statements a store sends. The portable form is for engines that speak PostgreSQL's
// protocol and are not PostgreSQL. It uses no place of a row (ctid), no xmax, no advisory lock and no notification, and
// each of its statements changes a table once. The native form is faster, and finds what lost processes hold.
//
// Processes of both profiles can share an inbox. The two do not see each other's lock of a worker (see claimsLock), so
// that a claim of a worker that is being released may be found one sweep later.
type profile struct {
	portable bool
	why      string // it is portable
	// partitioned says that messages and statuses are in partitions of a time. Only the native profile has them.
	partitioned bool
}

// forced is the profile of store.Options.Portable.
var forced = profile{portable: true, why: "option PortableSQL is on"}

// words are what differs within statements. {place} is a column that finds a row again, and {at place} begins the
// condition that does so. {touched} is true for a row that was locked or changed since it was written. {claims lock}
// and {release lock} end the condition on a worker's row. {evictable} says whether EvictHolders can end the sessions of
// that row's role. {marker} and {partition} are what {place} is for tables whose keys have several columns, and {marker
// expired} and {partition old} find the rows of "expired" and "old".
func (f profile) words() []string {
	if f.portable {
		return append([]string{"{place}", "id", "{at place}", base.OpenSQL + ` AND id`, "{touched}", "false",
			"{claims lock}", claimsLockPortable, "{release lock}", releaseLockPortable, "{evictable}", "true",
			"{marker}", "message_id, handler_key, namespace", "{marker expired}", markerExpired,
			"{partition}", `p.channel, p.group_id, p.topic, p."partition"`, "{partition old}", partitionOld}, plainWords...)
	}
	native := []string{"{touched}", "xmax <> 0",
		"{claims lock}", claimsLock, "{release lock}", releaseLock, "{evictable}", evictable,
		"{marker}", "ctid AS place", "{marker expired}", "ctid = ANY (ARRAY(SELECT place FROM expired))",
		"{partition}", "p.ctid AS place", "{partition old}", "ctid = ANY (ARRAY(SELECT place FROM old))"}
	if f.partitioned {
		return append(native, partitionedWords...)
	}
	return append(append(native, "{place}", "ctid", "{at place}", "ctid"), plainWords...)
}

// The portable profile finds markers by the array of their messages, which the planner takes for a short one, and among
// a message's few markers by the whole key.
const (
	markerExpired = `message_id = ANY (ARRAY(SELECT message_id FROM expired))
	AND (message_id, handler_key, namespace) IN (SELECT message_id, handler_key, namespace FROM expired)`
	partitionOld = `(channel, group_id, topic, "partition") IN (SELECT channel, group_id, topic, "partition" FROM old)`
)

// isPortable reports whether the portable profile was chosen. Until choose was called it was not.
func (p *Store) isPortable() bool {
	f := p.profile.Load()
	return f != nil && f.portable
}

// become changes the words and then the profile. Of two calls at once, the profile is that of the last one's words.
func (p *Store) become(f profile) {
	p.becoming.Lock()
	defer p.becoming.Unlock()
	p.SetWords(f.words()...)
	p.profile.Store(&f)
}

// These statements read no table of the inbox and change nothing.
const (
	versionSQL = `SELECT version()`

	// missingSQL returns a function that the native profile calls and the server does not have.
	missingSQL = `
SELECT name FROM unnest(ARRAY['hashtextextended(text,bigint)', 'pg_notification_queue_usage()', 'pg_notify(text,text)',
	'pg_try_advisory_xact_lock(bigint)', 'pg_try_advisory_xact_lock_shared(bigint)']) AS f(name) WHERE to_regprocedure(name) IS NULL LIMIT 1`

	// nativeSQL does once what the native profile does all the time. It reads one row of the catalog, by its place.
	nativeSQL = `
SELECT pg_try_advisory_xact_lock_shared(hashtextextended('inbox', 0)), pg_notification_queue_usage(),
	EXISTS (SELECT FROM pg_class WHERE ctid = '(0,1)' AND xmax <> 0)`
)

// plainVersion is how version() begins on PostgreSQL itself, also as distributions and vendors build it.
var plainVersion = regexp.MustCompile(`^PostgreSQL \d[\w.]*(,| on | \(| - Percona|$)`)

// choose finds out which profile the server needs, once. It may be called in a transaction of the caller's, so no
// statement of it fails because of the engine.
func (p *Store) choose(ctx context.Context, pool gorm.ConnPool) error {
	if p.profile.Load() != nil {
		return nil
	}
	versions, err := store.Query(ctx, pool, versionSQL, store.Value[string])
	if err != nil {
		return fmt.Errorf("%w: asked for its version", err)
	}
	if !plainVersion.MatchString(versions[0]) {
		p.become(profile{portable: true, why: "the server is " + brief.Name(versions[0])})
		return nil
	}
	missing, err := store.Query(ctx, pool, missingSQL, store.Value[string])
	if err != nil {
		return fmt.Errorf("%w: asked for its functions", err)
	}
	if len(missing) > 0 {
		p.become(profile{portable: true, why: "the server has no function " + missing[0]})
		return nil
	}
	partitioned, err := p.readLayout(ctx, pool)
	if err != nil {
		return fmt.Errorf("%w: asked for the tables' layout", err)
	}
	p.become(profile{partitioned: partitioned})
	return nil
}

// chooseAtStart also tries what the native profile needs. A server that calls itself PostgreSQL may refuse it.
func (p *Store) chooseAtStart(ctx context.Context) error {
	if err := p.choose(ctx, p.Pool(ctx)); err != nil || p.isPortable() {
		return err
	}
	_, err := store.Exec(ctx, p.Pool(ctx), nativeSQL)
	if state := pgdialect.SQLState(err); len(state) > 2 && (state[:2] == "0A" || state[:2] == "42") {
		p.become(profile{portable: true, why: "the server refuses a native statement: " + brief.Name(err.Error())})
		return nil
	}
	return err
}

// unasked tells operators that the engine may be one that a start refuses.
var unasked = store.Warning{Message: "inbox: whether this database keeps a locked row from other claims was not found out: " +
	"the pool had no two connections in time; see docs/engines.md"}

// notice tells operators that the portable profile runs.
func (f profile) notice() store.Warning {
	return store.Warning{Notice: true, Message: "inbox: the portable profile runs: no notifications pass between processes, " +
		"and the locks of a lost host stay until the server ends its session; see docs/engines.md",
		Fields: []zap.Field{zap.String(telemetry.FieldReason, f.why)}}
}

// largePool is a pool for statements about thousands of rows (see store.Singles.WithoutJIT). Engines that need the
// portable profile may not know the setting.
func (p *Store) largePool(ctx context.Context) (gorm.ConnPool, error) {
	if err := p.choose(ctx, p.Pool(ctx)); err != nil || p.isPortable() {
		return p.Pool(ctx), err
	}
	return p.Singles.WithoutJIT().Pool(ctx), nil
}

// cachedSQL reads the sequences that number messages and statuses in the catalog. A session that takes several numbers
// at once hands them out later than others take higher ones, so that numbers do not follow the order of acceptance.
const cachedSQL = `
SELECT c.relname, s.seqcache FROM pg_depend d
JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S' JOIN pg_sequence s ON s.seqrelid = c.oid
WHERE d.refobjid IN (to_regclass('{messages}'), to_regclass('{statuses}')) AND s.seqcache > 1 ORDER BY c.relname`

// These statements use locks_pkey.
const (
	probeReadSQL = `SELECT name FROM {locks} WHERE name = $1`
	probeLockSQL = `SELECT name FROM {locks} WHERE name = $1 FOR NO KEY UPDATE SKIP LOCKED` // as claims do
)

// probeLease is how long the lease that is locked by the probe remains if it cannot be released.
const probeLease = time.Minute

// checkEngine refuses an engine that would break the order of messages, run one twice, or lose one. It reports whether
// it could ask for all of that.
func (p *Store) checkEngine(ctx context.Context) (asked bool, err error) {
	cached, err := store.Query(ctx, p.Pool(ctx), p.Text(cachedSQL), func(rows *sql.Rows, c *cachedSequence) error {
		return rows.Scan(&c.name, &c.size)
	})
	if err != nil {
		return false, base.Doing("read the cache of sequences", err)
	}
	if len(cached) > 0 {
		return false, fmt.Errorf("sequence %s hands out %d numbers at once to each session, so that messages are not numbered in the order of acceptance: "+
			"run ALTER SEQUENCE %[1]s CACHE 1 (YugabyteDB: with ysql_sequence_cache_minval = 0 on all servers)", cached[0].name, cached[0].size)
	}
	return base.Probe(ctx, p.DB, func(ctx context.Context) error {
		// A lease of its own: the application's role may lock such a row, and other starts leave it alone.
		name, owner := "probe:"+uuid.NewString(), uuid.NewString()
		if _, err := p.AcquireLease(ctx, name, owner, probeLease, time.Time{}); err != nil {
			return err
		}
		err := base.ProbeLocks(ctx, p.Transaction, func(ctx context.Context, pool gorm.ConnPool) (bool, error) {
			locked, err := store.Query(ctx, pool, p.Text(probeLockSQL), store.Value[string], name)
			return len(locked) > 0, err
		})
		if err != nil {
			// What was found out counts, also if no time is left. The lease then ends by itself.
			_ = p.ReleaseLease(ctx, name, owner)
			return err
		}
		return p.probeIsolation(ctx, name, owner)
	})
}

// errSnapshots is what an engine does that takes another isolation for READ COMMITTED.
const errSnapshots = base.Refusal("the database runs transactions that state READ COMMITTED at another isolation, so that a cleanup would delete what an accept has just added: " +
	"turn READ COMMITTED on (YugabyteDB: yb_enable_read_committed_isolation, CockroachDB: sql.txn.read_committed_isolation.enabled)")

// probeIsolation releases the lease in the midst of a transaction that has read it. The next statement of the
// transaction must see that.
func (p *Store) probeIsolation(ctx context.Context, name, owner string) error {
	return p.Transaction(ctx, func(pool gorm.ConnPool) error {
		for _, last := range []bool{false, true} {
			found, err := store.Query(ctx, pool, p.Text(probeReadSQL), store.Value[string], name)
			switch {
			case err != nil:
				return base.Doing("check the isolation of transactions", err)
			case last && len(found) > 0:
				return errSnapshots
			case !last:
				if err := p.ReleaseLease(ctx, name, owner); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

type cachedSequence struct {
	name string
	size int64
}
