package base

import (
	"context"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
)

// Common has the methods of a store that differ between dialects only in the text of their statements and in the form
// of their arguments. The store of a dialect embeds it.
type Common struct {
	Database
	dialect dialect
	sql     Statements
	form    Form
}

// dialect has what each dialect does in its own way.
type dialect interface {
	accepting
	Transaction(ctx context.Context, work func(gorm.ConnPool) error) error
	AdvanceLanes(ctx context.Context, requests []store.LaneRequest, now time.Time) ([]string, error)
	AcquireLeases(ctx context.Context, names []string, owner string, ttl time.Duration, now time.Time) ([]string, error)
}

// Statements are the texts of Common's statements.
type Statements struct {
	Publishing
	Rejected RejectedRows
	Requests
	AddAudit, Siblings, AcceptKeys, AcceptDelete, ReleaseWaiting string
	DeleteMarkers, DeleteAudit, DeleteRejected                   string // get a time and a limit
	ExpiredSizes, ExpiredMessages, ExpiredStatuses               string
	LeaseOwners, ReleaseLeases, Paused, SetPaused, SetLegacyKeys string
	FurthestBehind, ForgetPartitions, WorkerLives, DeleteWorkers string
	Lanes                                                        LaneStatements
}

// Form is how a dialect passes arguments.
type Form struct {
	Parameter string // begins the number of a parameter: $ or ?
	Time      func(time.Time) any
	JSON      bool // lists are passed as JSON
	MaxList   int  // longer lists are passed in parts; 0 for no limit
}

// NewCommon returns the common methods of own, the store that is to embed them.
func NewCommon(d Database, own dialect, statements Statements, form Form) Common {
	return Common{Database: d, dialect: own, sql: statements, form: form}
}

// For returns the methods for own, a store that embeds the one they were made for and does some things in another way.
func (c Common) For(own dialect) Common {
	c.dialect = own
	return c
}

// numbered returns a statement of all dialects with this dialect's parameters.
func (c Common) numbered(statement string) string {
	return c.Text(strings.ReplaceAll(statement, "$", c.form.Parameter))
}

// inParts runs a query for the parts of a list that the dialect can take at once, and joins what it returns.
func inParts[T, R any](c Common, list []T, query func(part any) ([]R, error)) (all []R, err error) {
	if c.form.MaxList == 0 || len(list) <= c.form.MaxList {
		return query(listArgument(c, list))
	}
	for part := range slices.Chunk(list, c.form.MaxList) {
		found, err := query(listArgument(c, part))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// listArgument returns a list as an argument.
func listArgument[T any](c Common, list []T) any {
	if c.form.JSON {
		return JSONList(list)
	}
	return list
}

// Layout returns the only layout that the tables can have.
func (c Common) Layout() string { return "" }

// Look does nothing.
func (c Common) Look(context.Context) {}

// Follow returns the failure: the layout is not its cause.
func (c Common) Follow(_ context.Context, _ string, failure error) error { return failure }

// Partitioned is true on servers alone, and there only if the tables were changed so.
func (c Common) Partitioned(context.Context) (bool, error) { return false, nil }

// KeepPartitions does nothing where there are no partitions.
func (c Common) KeepPartitions(context.Context, store.PartitionsRequest) (r store.PartitionsResult, err error) {
	return r, nil
}

// SingleWriter is true on SQLite alone.
func (c Common) SingleWriter() bool { return false }

// Notify does nothing where there are no notifications.
func (c Common) Notify(context.Context, ...string) error { return nil }

// NotifyTx does nothing where there are no notifications.
func (c Common) NotifyTx(context.Context, *gorm.DB, ...string) error { return nil }

// Listen fails where there are no notifications.
func (c Common) Listen(context.Context) (store.Listener, error) { return nil, store.ErrNoNotifications }

// EvictHolders does nothing where a transaction dies with its process, as on SQLite, and where nobody shows who holds a
// lock: on MySQL an application's user may not see it.
func (c Common) EvictHolders(context.Context, []store.Ref, []string) (int, error) { return 0, nil }
