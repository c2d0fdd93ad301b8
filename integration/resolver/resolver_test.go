package resolver

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/plugin/dbresolver"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest/kafkatest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/gormstore"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/testenv"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

var errReplica = errors.New("this is the replica")

// replica is another, empty database, whose pool keeps no connection. Once it is forbidden, it
// refuses connections and records who requested one.
type replica struct {
	driver driver.Driver
	dsn    string

	mu        sync.Mutex
	forbidden bool
	askedBy   []string
}

func newReplica(t *testing.T, driverName, dsn string) (*replica, *sql.DB) {
	t.Helper()
	bare, err := sql.Open(driverName, dsn)
	require.NoError(t, err)
	r := &replica{driver: bare.Driver(), dsn: dsn}
	require.NoError(t, bare.Close())
	pool := sql.OpenDB(r)
	pool.SetMaxIdleConns(-1)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return r, pool
}

// Connect implements driver.Connector.
func (r *replica) Connect(context.Context) (driver.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.forbidden {
		r.askedBy = append(r.askedBy, string(debug.Stack()))
		return nil, errReplica
	}
	return r.driver.Open(r.dsn)
}

// Driver implements driver.Connector.
func (r *replica) Driver() driver.Driver { return r.driver }

// open opens a session on the replica's database, as its own server's administrators would.
func (r *replica) open(t *testing.T) *gorm.DB {
	t.Helper()
	switch {
	case strings.HasPrefix(r.dsn, "file:"):
		return testenv.OpenSQLite(t, r.dsn)
	case strings.Contains(r.dsn, "@tcp("):
		return testenv.OpenMySQL(t, r.dsn)
	}
	return testenv.OpenPostgres(t, r.dsn)
}

func (r *replica) forbid() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forbidden = true
}

func (r *replica) callers() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.askedBy)
}

// resolved opens d through dbresolver, with d as the source and another database as the replica: for
// the tables, if any are given, otherwise for all.
func resolved(t *testing.T, d *inboxtest.Database, prepared bool, tables ...any) (*gorm.DB, *replica) {
	t.Helper()
	var (
		r                *replica
		pool             *sql.DB
		separate, config = d.Another(t), &gorm.Config{Logger: logger.Discard, PrepareStmt: prepared}
	)
	sources, err := separate.DB()
	require.NoError(t, err)
	dialector := func(pool *sql.DB) gorm.Dialector { return sqlite.Dialector{Conn: pool} }
	switch d.Dialect {
	case "sqlite":
		r, pool = newReplica(t, "sqlite", testenv.SQLiteDSN(t))
	case "mysql":
		dialector = func(pool *sql.DB) gorm.Dialector { return mysql.New(mysql.Config{Conn: pool}) }
		r, pool = newReplica(t, "mysql", testenv.AnyMySQLDSN(t))
	default:
		dialector = func(pool *sql.DB) gorm.Dialector { return postgres.New(postgres.Config{Conn: pool}) }
		r, pool = newReplica(t, "pgx", testenv.PostgresDSN(t))
	}
	own, err := d.DB.DB()
	require.NoError(t, err)
	first, source, reading := dialector(own), dialector(sources), dialector(pool)
	db, err := gorm.Open(first, config)
	require.NoError(t, err)
	require.NoError(t, db.Use(dbresolver.Register(dbresolver.Config{
		Sources: []gorm.Dialector{source}, Replicas: []gorm.Dialector{reading},
	}, tables...)))
	return db, r
}

// tablesOf returns the names of an inbox's tables and of the effects, for a resolver of tables.
func tablesOf(naming models.Naming) []any {
	return []any{"effects", naming.Messages(), naming.HandlerStatuses(), naming.RejectedMessages(), naming.Gaps(),
		naming.Locks(), naming.Workers(), naming.Handlers(), naming.Markers(), naming.Audit(), naming.Meta()}
}

// onEach runs a test with a dbresolver session on each database, also with GORM's cache of prepared
// statements and with a resolver of the tables. The replica refuses connections. Each run has tables
// of its own.
func onEach(t *testing.T, test func(t *testing.T, d *inboxtest.Database, db *gorm.DB, naming models.Naming)) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		inboxtest.Exec(t, d.DB,
			"CREATE TABLE effects (handler varchar(50) NOT NULL, message varchar(50) NOT NULL, PRIMARY KEY (handler, message))")
		for _, name := range []string{"all", "prepared", "tables"} {
			t.Run(name, func(t *testing.T) {
				inboxtest.Exec(t, d.DB, "DELETE FROM effects")
				naming := models.Naming{Prefix: name + "_"}
				var tables []any
				if name == "tables" {
					tables = tablesOf(naming)
				}
				db, r := resolved(t, d, name == "prepared", tables...)
				r.forbid()
				require.ErrorIs(t, db.Raw("SELECT count(*) FROM effects").Scan(new(int)).Error, errReplica,
					"reads of the application's go there")
				require.ErrorIs(t, db.Clauses(naming).Find(&[]models.Message{}).Error, errReplica, "of these tables, too")
				r.askedBy = nil
				test(t, d, db, naming)
				require.Empty(t, r.callers())
			})
		}
	})
}

// under gives an inbox the tables of naming.
func under(naming models.Naming) inbox.Option {
	return inbox.Configure(func(o *inbox.Options) { o.TablePrefix = naming.Prefix })
}

// write writes an effect and reads it back in the same transaction.
func write(tx *gorm.DB, m inboxtest.Bytes) error {
	if err := tx.Exec("INSERT INTO effects (handler, message) VALUES (?, ?)", m.HandlerKey, m.ID).Error; err != nil {
		return err
	}
	var n int
	if err := tx.Raw("SELECT count(*) FROM effects WHERE message = ?", m.ID).Scan(&n).Error; err != nil || n == 0 {
		return errors.Join(err, fmt.Errorf("%d effects of message %s", n, m.ID))
	}
	return nil
}

// effects reads the effects from the source.
func effects(t *testing.T, d *inboxtest.Database) (all []string) {
	t.Helper()
	require.NoError(t, d.DB.Raw("SELECT handler || ' ' || message FROM effects ORDER BY 1").Scan(&all).Error)
	return all
}

func tx(_ context.Context, tx *gorm.DB, m inboxtest.Bytes) error { return write(tx, m) }

// bad is a handler that fails the message "bad" the first time.
func bad(_ context.Context, m inboxtest.Bytes) error {
	if m.ID == "bad" {
		return errors.New("bad")
	}
	return nil
}

// TestInboxNeverReadsAReplica proves contract 3.7.
func TestInboxNeverReadsAReplica(t *testing.T) {
	onEach(t, func(t *testing.T, d *inboxtest.Database, db *gorm.DB, naming models.Naming) {
		ib := inboxtest.New(t, db, inboxtest.Brisk(), under(naming), inbox.Configure(func(o *inbox.Options) {
			o.Processor.MaxRetries = 1
			o.Cleanup.Retention = time.Millisecond
		}),
			inboxtest.Handlers(
				inboxtest.Tx("alone", tx), inboxtest.Tx("group", tx, handler.TxGroup(5)),
				inboxtest.Tx("ordered", tx, handler.Ordered()), inboxtest.Do("plain", bad)))
		end := inboxtest.Start(t, ib)
		inboxtest.Accept(t, ib, "1", "2", "2")
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			_, err := ib.AcceptTx(t.Context(), tx, inboxtest.Message("3"))
			return err
		}))
		require.NoError(t, db.Clauses(dbresolver.Write).Transaction(func(tx *gorm.DB) error { // on the source
			_, err := ib.AcceptTx(t.Context(), tx, inboxtest.Message("bad"))
			return err
		}))
		o, err := ib.Ops()
		require.NoError(t, err)
		poisoned := ops.Filter{States: []ops.State{ops.StatePoisoned}}
		var page ops.Page[ops.Status]
		inboxtest.Eventually(t, func() bool {
			overview, err := o.Overview(t.Context())
			require.NoError(t, err)
			for _, h := range overview.Handlers {
				if h.Pending.N > 0 || h.Processing.N > 0 {
					return false
				}
			}
			page, err = o.List(t.Context(), poisoned, "", 10)
			require.NoError(t, err)
			return len(page.Items) == 1 && len(effects(t, d)) == 12
		}, "everything is processed")
		require.Empty(t, ib.Health().Reasons)
		operate(t, o, page.Items[0])
		end()

		inboxtest.Accept(t, ib, "4")
		require.Equal(t, 4, inboxtest.Process(t, ib).Completed)
		require.Len(t, effects(t, d), 15)
		_, err = ib.Cleanup(t.Context())
		require.NoError(t, err)
		var left int
		require.NoError(t, d.DB.Raw("SELECT count(*) FROM "+naming.Messages()).Scan(&left).Error)
		require.Zero(t, left)
	})
}

// operate calls the operations of an operator with a poisoned status.
func operate(t *testing.T, o *ops.Ops, poisoned ops.Status) {
	t.Helper()
	ctx, ada := t.Context(), ops.Actor("ada")
	require.NoError(t, o.CheckSchema(ctx))
	must := func(_ any, err error) {
		t.Helper()
		require.NoError(t, err)
	}
	must(o.Message(ctx, ada, poisoned.Message()))
	must(o.Count(ctx, ops.Filter{ErrorText: "bad"}))
	must(o.Failures(ctx, ops.Filter{}))
	must(o.Workers(ctx))
	must(o.Leases(ctx))
	must(o.Handlers(ctx))
	must(o.ListGaps(ctx, "", 10))
	must(o.ListRejected(ctx, ops.RejectedFilter{}, "", 10))
	require.NoError(t, o.Pause(ctx, ada, "plain"))
	require.NoError(t, o.Resume(ctx, ada, "plain"))
	require.NoError(t, o.Retry(ctx, ada, ops.Ref{StatusID: poisoned.ID}))
	inboxtest.Eventually(t, func() bool {
		result, err := o.DiscardMatching(ctx, ada, ops.Filter{HandlerKeys: []string{"plain"},
			States: []ops.State{ops.StatePoisoned}}, ops.Bulk{})
		require.NoError(t, err)
		return err == nil && result.Done == 1
	}, "it is poisoned again and discarded")
	must(o.Audit(ctx, ops.AuditFilter{}, "", 10))
	must(o.Cleanup(ctx, ada))
}

// TestInlineChannelNeverReadsAReplica proves contract 3.7 and 8.1.
func TestInlineChannelNeverReadsAReplica(t *testing.T) {
	onEach(t, func(t *testing.T, d *inboxtest.Database, db *gorm.DB, naming models.Naming) {
		k := kafkatest.Start(t, kafkatest.Topic("events", 1))
		record := kafkatest.Record{Value: []byte("x"),
			Headers: []kafkatest.Header{{Key: "MessageId", Value: []byte("1")}, {Key: "MessageType", Value: []byte("t")}}}
		require.NoError(t, k.Produce("events", record, record))
		ib := inboxtest.New(t, db, inboxtest.Brisk(), under(naming), inbox.Channel("events", inbox.Inline(),
			inbox.Kafka(kafkaconsumer.Config{Brokers: k.Brokers(), Topics: []string{"events"}, GroupID: "group",
				SessionTimeout: 10 * time.Second}),
			inbox.On("t", inboxtest.Tx("tx", tx), inboxtest.Do("plain", func(ctx context.Context, m inboxtest.Bytes) error {
				return write(handler.DB(ctx), m)
			}))))
		end := inboxtest.Start(t, ib)
		inboxtest.Eventually(t, func() bool {
			return k.Committed("group", "events")[0] == 2
		}, "both records are acknowledged")
		end()
		require.Equal(t, []string{"plain 1", "tx 1"}, effects(t, d))
	})
}

// TestMarkerStoreNeverReadsAReplica proves contract 3.7 and 8.2.
func TestMarkerStoreNeverReadsAReplica(t *testing.T) {
	onEach(t, func(t *testing.T, d *inboxtest.Database, db *gorm.DB, naming models.Naming) {
		require.NoError(t, models.Migrate(t.Context(), db, naming, ""))
		s, err := gormstore.New(db, func(o *gormstore.Options) { o.TablePrefix = naming.Prefix })
		require.NoError(t, err)
		require.NoError(t, s.Check(t.Context()))
		run := func(ctx context.Context, id string) (duplicate bool) {
			key := idempotent.Key{MessageID: id, HandlerKey: "h"}
			duplicate, err := s.Run(ctx, idempotent.Run{Key: key, MessageType: "t", Retention: time.Millisecond},
				func(ctx context.Context) error {
					return write(handler.DB(ctx), inboxtest.Bytes{Metadata: handler.Metadata{ID: id, HandlerKey: "h"}})
				})
			require.NoError(t, err)
			return duplicate
		}
		require.False(t, run(t.Context(), "1"))
		require.True(t, run(t.Context(), "1"))
		require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
			require.False(t, run(gormstore.WithTx(t.Context(), tx), "2"))
			return nil
		}))
		processed, err := s.Processed(t.Context(), idempotent.Key{MessageID: "2", HandlerKey: "h"})
		require.NoError(t, err)
		require.True(t, processed)
		require.Len(t, effects(t, d), 2)
		deleted, err := s.Cleanup(t.Context(), time.Now().Add(2*time.Hour))
		require.NoError(t, err)
		require.EqualValues(t, 2, deleted)
	})
}

// TestApplicationReadsFollowTheResolver proves contract 3.7 with a replica that has
// the same tables and other contents.
func TestApplicationReadsFollowTheResolver(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		for _, name := range []string{"all", "tables"} {
			t.Run(name, func(t *testing.T) {
				naming := models.Naming{Prefix: name + "_"}
				var tables []any
				if name == "tables" {
					tables = tablesOf(naming)
				}
				db, r := resolved(t, d, false, tables...)
				handled := make(chan string, 3)
				ib := inboxtest.New(t, db, under(naming), inboxtest.Handlers(
					inboxtest.Tx("h", func(ctx context.Context, tx *gorm.DB, m inboxtest.Bytes) error {
						var classic models.Message
						if err := tx.Clauses(naming).Take(&classic).Error; err != nil {
							return err
						}
						status, err := gorm.G[models.HandlerStatus](tx, naming).Preload("Message", nil).Take(ctx)
						handled <- classic.ID
						handled <- status.Message.ID
						return err
					})))
				behind := inboxtest.New(t, r.open(t), under(naming), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
				inboxtest.Accept(t, behind, "on the replica")
				inboxtest.Accept(t, ib, "on the source")

				read := func(db *gorm.DB) (ids []string) {
					var status models.HandlerStatus
					require.NoError(t, db.Clauses(ib.Tables()).Preload("Message").Take(&status).Error)
					generic, err := gorm.G[models.Message](db, ib.Tables()).Take(t.Context())
					require.NoError(t, err)
					return []string{status.MessageID, status.Message.ID, generic.ID}
				}
				require.Equal(t, slices.Repeat([]string{"on the replica"}, 3), read(db))
				require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
					require.Equal(t, slices.Repeat([]string{"on the source"}, 3), read(tx))
					return nil
				}))
				var status models.HandlerStatus
				require.NoError(t, db.Clauses(dbresolver.Write, ib.Tables()).Take(&status).Error)
				require.Equal(t, "on the source", status.MessageID)
				require.Equal(t, 1, inboxtest.Process(t, ib).Completed)
				require.Equal(t, "on the source", <-handled)
				require.Equal(t, "on the source", <-handled)

				result := db.Clauses(ib.Tables()).Save(&status)
				require.NoError(t, result.Error)
				require.Zero(t, result.RowsAffected, "it has been completed on the source")
			})
		}
	})
}

// Contract 3.7: what is pinned to a replica would be written there, or nowhere.
func TestSessionsPinnedToAReplicaAreRefused(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		db, _ := resolved(t, d, false)
		channel := inbox.Channel("c", inbox.On("t", inbox.Func("h",
			func(context.Context, handler.Message[[]byte]) error { return nil })))
		ib, err := inbox.New("orders", db, channel)
		require.NoError(t, err)
		require.NoError(t, ib.Migrate(t.Context()))
		accept := func(pinned *gorm.DB) error {
			tx := pinned.Begin()
			defer tx.Rollback()
			_, err := ib.AcceptTx(t.Context(), tx, handler.RawMessage{Channel: "c", Type: "t", ID: "1"})
			return err
		}
		pinned := db.Clauses(dbresolver.Read)
		require.ErrorContains(t, accept(pinned), "dbresolver.Read")
		require.NoError(t, accept(db.Clauses(dbresolver.Write)))
		for _, session := range []*gorm.DB{pinned, pinned.Session(&gorm.Session{NewDB: true})} {
			_, err := inbox.New("other", session, channel)
			require.ErrorContains(t, err, "dbresolver.Read")
			_, err = ops.New(session)
			require.ErrorContains(t, err, "dbresolver.Read")
			_, err = gormstore.New(session)
			require.ErrorContains(t, err, "dbresolver.Read")
		}
	})
}
