package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/dialects"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
)

// Reader has the methods of Ops that show what is stored and depend on no worker: lists, counts, failure groups,
// messages, rejected messages, markers and the audit. Each is documented at Ops. See Ops.Reader. It is safe for
// concurrent use.
type Reader interface {
	List(ctx context.Context, filter Filter, after Cursor, limit int) (Page[Status], error)
	Count(ctx context.Context, filter Filter) (Count, error)
	Failures(ctx context.Context, filter Filter) (Failures, error)
	Message(ctx context.Context, actor Actor, ref MessageRef) (Message, error)
	PreviewMessage(ctx context.Context, actor Actor, ref MessageRef, bounds PreviewBounds) (MessagePreview, error)
	Markers(ctx context.Context, messageID, handlerKey, namespace string) ([]models.Marker, error)
	ListRejected(ctx context.Context, filter RejectedFilter, after Cursor, limit int) (Page[Rejected], error)
	Rejected(ctx context.Context, actor Actor, id string) (RejectedRecord, error)
	PreviewRejected(ctx context.Context, actor Actor, id string, bounds PreviewBounds) (RejectedPreview, error)
	ListGaps(ctx context.Context, after Cursor, limit int) (Page[models.Gap], error)
	Audit(ctx context.Context, filter AuditFilter, after Cursor, limit int) (Page[AuditEntry], error)
}

// Source says where a Reader reads. Its String is for people.
type Source struct {
	// Replica means the option Replica; otherwise it is the primary.
	Replica bool
	// Behind is how far the replica is behind, judged by the workers' heartbeats and so to within their interval. It is
	// negative while that is unknown, and 0 for the primary.
	Behind time.Duration
	// Problem is, in a few words without names, what is unusual: why the primary is read although there is a replica, or
	// that the delay is long or unknown. It is empty if nothing is.
	Problem string
	// Err is why the replica cannot be read. It may name the database's host and user. Nil if it can.
	Err error
}

// String returns a sentence without its full stop, such as "Read from a replica, 3s behind". It is empty if the primary
// is read because there is no replica.
func (s Source) String() string {
	text := "Read from the primary"
	switch {
	case !s.Replica && s.Problem == "":
		return ""
	case s.Replica && s.Behind >= 0:
		text = fmt.Sprintf("Read from a replica, %s behind", health.InWords(s.Behind.Truncate(time.Second)))
	case s.Replica:
		text = "Read from a replica"
	}
	if s.Problem != "" {
		text += ": " + s.Problem
	}
	return text
}

const (
	// maxBehind is the longest delay of a replica that is usual.
	maxBehind = time.Minute
	// probeTimeout is how long a replica has to answer before the primary is read.
	probeTimeout = 2 * time.Second
	// lastActs is how many of the latest audit rows a replica must have, as far as they are of actions.
	lastActs = 100
)

// Reader returns what to read lists, counts and details from, and where that is. Without the option Replica it is this
// Ops. Otherwise it is the replica, unless that does not answer within two seconds, is of another inbox, or lacks an
// operator's action that the primary has: who acts and looks again sees what was done. Get a new Reader for each page
// or export, and show its Source: a Reader stays where it is, also if its replica is lost (contract 11.7).
//
// A row on a replica may be out of date. So pass the Version that was seen with each action, and count what an action
// is to change with this Ops. A message that a replica does not have yet is read from the primary. Views leave their
// audit rows on the primary before anything is shown.
func (o *Ops) Reader(ctx context.Context) (Reader, Source) {
	if o.replica == nil {
		return o, Source{}
	}
	source := o.sourceNow(ctx)
	if !source.Replica {
		return o, source
	}
	return o.replica, source
}

// sourceNow judges the replica. What is read of the primary is read first, so that the replica cannot seem to lack what
// was written since.
func (o *Ops) sourceNow(ctx context.Context) Source {
	at, err := o.store.LastHeartbeat(ctx, o.pool(ctx), o.opts.Clock.Now())
	var acts []string
	if err == nil {
		acts, err = o.lastActs(ctx, lastActs)
	}
	if err != nil { // lists can be shown all the same
		return Source{Replica: true, Behind: -1, Problem: "its delay is unknown, because the primary does not answer"}
	}
	copied, has, err := o.replica.probe(ctx)
	switch {
	case err != nil:
		return Source{Problem: "the replica does not answer", Err: err}
	case copied.Inbox != at.Inbox:
		return Source{Problem: "the replica is of another inbox"}
	case slices.ContainsFunc(acts, func(id string) bool { return !slices.Contains(has, id) }):
		return Source{Problem: "the replica does not have the latest action yet"}
	case at.Now.Sub(at.At) > aliveFor:
		return Source{Replica: true, Behind: -1, Problem: "its delay is unknown, because no worker runs"}
	}
	source := Source{Replica: true, Behind: max(at.At.Sub(copied.At), 0)}
	if copied.At.IsZero() {
		source.Behind, source.Problem = -1, "its delay is unknown, because it has no worker's heartbeat"
	} else if source.Behind > maxBehind {
		source.Problem = "more than " + health.InWords(maxBehind) + ", check its replication"
	}
	return source
}

// lastActs returns the IDs of the audit rows of actions, without views, among the latest ones.
func (o *access) lastActs(ctx context.Context, latest int) (ids []string, err error) {
	from, to := o.roughly(time.Time{}, time.Time{})
	rows, err := o.store.ScanAudit(ctx, o.largePool(ctx), store.AuditScan{FromID: uuid.Nil.String(), BeforeID: lastID,
		Depth: latest, Limit: latest, From: from, To: to})
	for _, row := range rows {
		switch Action(row.Action) {
		case ActionView, actionViewRejected, actionDenied:
		default:
			if !row.Closes {
				ids = append(ids, row.ID)
			}
		}
	}
	return ids, err
}

// replica reads a copy of the database. Its transactions, and what it needs to know of workers, are the primary's.
type replica struct {
	*Ops
	primary *Ops
}

// readingFrom returns the reader of a replica, with as many connections as the option says; 0 is its default.
func (o *Ops) readingFrom(db *gorm.DB, connections int) (*replica, error) {
	if _, err := stores.New(db, o.opts.Naming, store.Options{}); err != nil { // checks it
		return nil, err
	}
	of, err := dialects.Of(db)
	if err != nil {
		return nil, err
	}
	if primary, err := dialects.Of(o.db); err != nil || of != primary {
		return nil, errors.Join(err, fmt.Errorf("it is %s, another database than the inbox's", of.Title))
	}
	if connections == 0 {
		connections = fewConnections(db)
	}
	limit := &access{opts: o.opts, inUse: make(chan struct{}, connections)}
	a := *o.access
	singles := store.NewSingles(db.Session(&gorm.Session{NewDB: true})).Following(o.store)
	a.singles, a.copied = singles.Within(limit.connected), true
	a.singles.StateIsolation() // a hot standby refuses SERIALIZABLE, which may be the default
	on, search := *o, statusSearch{&a}
	on.access, on.statusSearch, on.rejections, on.auditLog = &a, search, rejections{&a}, auditLog{&a}
	on.messageViews = messageViews{search, o.processes, &a}
	return &replica{Ops: &on, primary: o}, nil
}

// probe returns the latest heartbeat that the replica has, and the actions.
func (r *replica) probe(ctx context.Context) (at store.LastHeartbeat, acts []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(probeTimeout, r.opts.StatementTimeout))
	defer cancel()
	if at, err = r.store.LastHeartbeat(ctx, r.pool(ctx), r.opts.Clock.Now()); err == nil {
		acts, err = r.lastActs(ctx, 2*lastActs) // it may have rows that the primary did not have yet
	}
	return at, acts, err
}

// orPrimary returns what the replica has or, if it has nothing, what the primary has.
func orPrimary[T any](seen T, err error, primary func() (T, error)) (T, error) {
	if errors.Is(err, ErrNotFound) {
		return primary()
	}
	return seen, err
}

func (r *replica) Message(ctx context.Context, actor Actor, ref MessageRef) (Message, error) {
	m, err := r.Ops.Message(ctx, actor, ref)
	return orPrimary(m, err, func() (Message, error) { return r.primary.Message(ctx, actor, ref) })
}

func (r *replica) PreviewMessage(
	ctx context.Context, actor Actor, ref MessageRef, bounds PreviewBounds,
) (MessagePreview, error) {
	m, err := r.Ops.PreviewMessage(ctx, actor, ref, bounds)
	return orPrimary(m, err, func() (MessagePreview, error) { return r.primary.PreviewMessage(ctx, actor, ref, bounds) })
}

func (r *replica) Rejected(ctx context.Context, actor Actor, id string) (RejectedRecord, error) {
	record, err := r.Ops.Rejected(ctx, actor, id)
	return orPrimary(record, err, func() (RejectedRecord, error) { return r.primary.Rejected(ctx, actor, id) })
}

func (r *replica) PreviewRejected(
	ctx context.Context, actor Actor, id string, bounds PreviewBounds,
) (RejectedPreview, error) {
	record, err := r.Ops.PreviewRejected(ctx, actor, id, bounds)
	return orPrimary(record, err, func() (RejectedPreview, error) {
		return r.primary.PreviewRejected(ctx, actor, id, bounds)
	})
}
