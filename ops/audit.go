package ops

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// Actor is the operator who acts: a user's name or address, 1 to 200 characters. The caller has authenticated it. An
// empty or too long Actor, or one that is not text, is ErrBadInput.
type Actor string

// Action is the kind of an audit row.
type Action string

// These are the actions.
const (
	ActionView           Action = "view" // of a message and its payload
	actionViewRejected   Action = "view_rejected"
	ActionRetry          Action = "retry"
	ActionDiscard        Action = "discard"
	ActionReschedule     Action = "reschedule"
	actionRerun          Action = "rerun"
	actionReleaseClaim   Action = "release_claim"
	ActionCancel         Action = "cancel" // records the request, like those of partitions
	ActionCancelRequest  Action = "cancel_request"
	actionDelete         Action = "delete"
	ActionReplay         Action = "replay"
	ActionBackfill       Action = "backfill"
	ActionReAccept       Action = "re_accept"
	ActionReadAgain      Action = "read_again"
	actionDeleteRejected Action = "delete_rejected"
	ActionPause          Action = "pause"
	actionResume         Action = "resume"
	ActionCleanup        Action = "cleanup"
	// These record the request. Whether it was carried out shows the partition.
	actionResumePartition Action = "resume_partition"
	actionSkipRecord      Action = "skip_record"
	actionForgetTopic     Action = "forget_topic"
	actionDenied          Action = "denied" // the target is the refused request
)

// Actions returns all actions.
func Actions() []Action {
	return []Action{ActionView, actionViewRejected, ActionRetry, ActionDiscard, ActionReschedule, actionRerun,
		actionReleaseClaim, ActionCancel, ActionCancelRequest, actionDelete, ActionReplay, ActionBackfill, ActionReAccept,
		ActionReadAgain, actionDeleteRejected, ActionPause, actionResume, actionResumePartition, actionSkipRecord,
		actionForgetTopic, ActionCleanup, actionDenied}
}

// AuditEntry is one row of the audit.
type AuditEntry struct {
	ID         string
	OccurredAt time.Time
	Actor      Actor
	// DatabaseRole is the server's role or user that wrote the row, which may differ from Actor. It is empty on SQLite.
	DatabaseRole string
	Action       Action
	// Target is what the action was applied to, such as "message m1", "status 0190…" or "handler orders.mail".
	Target string
	// Detail is JSON. Its content depends on the action.
	Detail string
}

// AuditFilter narrows the audit. Empty fields match everything.
type AuditFilter struct {
	Actor  Actor
	Action Action
	// Target is a substring of the entry's Target.
	Target   string
	From, To time.Time
}

// Audit returns a page of the audit, newest first. See List for after and limit. Reading the audit leaves no audit row.
func (o auditLog) Audit(ctx context.Context, filter AuditFilter, after Cursor, limit int) (Page[AuditEntry], error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	err := checkTexts(argument{name: "actor", text: string(filter.Actor)},
		argument{name: "action", text: string(filter.Action)}, argument{name: "target", text: filter.Target})
	if err == nil {
		err = checkAges(filter.From, filter.To)
	}
	if err != nil {
		return Page[AuditEntry]{}, err
	}
	from, to := o.roughly(filter.From, filter.To)
	placeAt := func(h store.AuditHit) place { return place{ListPlace: store.ListPlace{ID: h.ID}} }
	read := func(ctx context.Context, p place, depth, limit int) (part[store.AuditHit], error) {
		scan := store.AuditScan{FromID: auditID(filter.From, -auditMargin, uuid.Nil),
			BeforeID: min(p.ID, auditID(filter.To, auditMargin, uuid.Max)), Depth: depth, Limit: limit,
			Actor: string(filter.Actor), Action: string(filter.Action), Target: filter.Target, From: from, To: to}
		rows, err := o.store.ScanAudit(ctx, o.largePool(ctx), scan)
		return parted(rows, placeAt, func(h store.AuditHit) (int, bool) { return h.Looked, h.Closes }), err
	}
	page, err := pageOf(ctx, "audit", filter, after, limit, false, read, placeAt, func(h store.AuditHit) bool {
		return within(h.OccurredAt, filter.From, filter.To)
	})
	if err != nil {
		return Page[AuditEntry]{}, fmt.Errorf("list the audit: %w", err)
	}
	shown := pageAs(page, func(h store.AuditHit) AuditEntry {
		return AuditEntry{ID: h.ID, OccurredAt: h.OccurredAt, Actor: Actor(h.Actor), DatabaseRole: h.DatabaseRole,
			Action: Action(h.Action), Target: h.Target}
	})
	if err := o.details(ctx, shown.Items); err != nil {
		return Page[AuditEntry]{}, fmt.Errorf("list the audit: %w", err)
	}
	return shown, nil
}

// details fills in the details, which are long: chunks of bulk actions name all of their statuses. So it reads them
// only for the entries that are shown, not for all that were scanned.
func (o auditLog) details(ctx context.Context, entries []AuditEntry) error {
	ids := make([]string, len(entries))
	for i, entry := range entries {
		ids[i] = entry.ID
	}
	details, err := o.store.AuditDetails(ctx, o.pool(ctx), ids)
	for i := range entries {
		entries[i].Detail = details[entries[i].ID]
	}
	return err
}

// check returns an error if the actor is not usable.
func (a Actor) check() error {
	if strings.TrimSpace(string(a)) == "" {
		return badInput("actor", "it is empty")
	}
	return checkText("actor", string(a), 1, 200)
}

// audited runs an action in one transaction with its audit row, so neither exists without the other (contract 11.3).
// The row's detail is work's result.
func (o *access) audited(ctx context.Context, actor Actor, action Action, target string,
	work func(ctx context.Context, tx *gorm.DB) (detail any, err error),
) error {
	_, err := o.auditedAs(ctx, actor, action, target, work)
	return err
}

// auditedAs is audited, and returns the ID of the audit row.
func (o *access) auditedAs(ctx context.Context, actor Actor, action Action, target string,
	work func(ctx context.Context, tx *gorm.DB) (detail any, err error),
) (id string, err error) {
	if err := actor.check(); err != nil {
		return "", fmt.Errorf("%s: %w", action, err)
	}
	id = uuid.Nil.String()
	err = o.act(ctx, func(ctx context.Context, tx *gorm.DB) error {
		detail, err := work(ctx, tx)
		if err != nil {
			return err
		}
		entry, err := o.entry(actor, action, target, detail)
		if err != nil {
			return err
		}
		id = entry.ID
		return o.store.AddAuditTx(ctx, tx, entry)
	})
	if err != nil {
		err = fmt.Errorf("%s %s: %w", action, target, err)
	}
	return id, err
}

// viewed loads what is shown to an actor, with its audit row. That is one transaction. What a replica has is loaded
// before: without the row, the caller shows nothing.
func (o *access) viewed(ctx context.Context, actor Actor, action Action, target string,
	load func(ctx context.Context, pool gorm.ConnPool) (detail any, err error),
) error {
	if !o.copied {
		return o.audited(ctx, actor, action, target, func(ctx context.Context, tx *gorm.DB) (any, error) {
			return load(ctx, tx.Statement.ConnPool)
		})
	}
	detail, err := load(ctx, o.pool(ctx))
	if err != nil {
		return fmt.Errorf("%s %s: %w", action, target, err)
	}
	return o.note(ctx, actor, action, target, detail)
}

// note adds an audit row for an action without a transaction.
func (o *access) note(ctx context.Context, actor Actor, action Action, target string, detail any) error {
	return o.audited(ctx, actor, action, target, func(context.Context, *gorm.DB) (any, error) { return detail, nil })
}

// noteThrough is like note, for a part of a bulk action, which a lost connection does not end.
func (o *access) noteThrough(ctx context.Context, actor Actor, action Action, target string, detail any) error {
	return o.auditedThrough(ctx, actor, action, target,
		func(context.Context, *gorm.DB) (any, error) { return detail, nil })
}

// noteAnyway is like noteThrough, but ignores the end of ctx: the action was done or refused all the same.
func (o *access) noteAnyway(ctx context.Context, actor Actor, action Action, target string, detail any) error {
	ctx, cancel := o.bounded(context.WithoutCancel(ctx))
	defer cancel()
	return o.noteThrough(ctx, actor, action, target, detail)
}

// entry returns a new audit row. Its ID is later than the IDs of all earlier rows of this process.
func (o *access) entry(actor Actor, action Action, target string, detail any) (models.Audit, error) {
	now := o.opts.Clock.Now()
	id, err := o.auditIDs.next(now)
	if err != nil {
		return models.Audit{}, fmt.Errorf("%w: %w", ErrNotAudited, err)
	}
	text := []byte("{}")
	if detail != nil {
		if text, err = json.Marshal(detail); err != nil {
			return models.Audit{}, fmt.Errorf("%w: its detail: %w", ErrNotAudited, err)
		}
	}
	return models.Audit{ID: id, Actor: string(actor), Action: string(action), Target: target, Detail: string(text),
		OccurredAt: now}, nil
}

// auditIDs makes the IDs of audit rows. They are UUIDs of version 7 from the same clock as the rows' times, so a time
// corresponds to a place among the IDs. Each ID is later than the one before it, even if the clock goes back.
type auditIDs struct {
	mu   sync.Mutex
	last int64
}

func (a *auditIDs) next(now time.Time) (string, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("make an ID: %w", err)
	}
	a.mu.Lock()
	a.last = max(a.last+1, placeInTime(now))
	at := a.last
	a.mu.Unlock()
	putTime(&id, at)
	return id.String(), nil
}

// placeInTime returns t in 4,096ths of a millisecond since 1970, limited to what a UUID of version 7 can hold: the year
// 10889.
func placeInTime(t time.Time) int64 {
	if t.Before(time.UnixMilli(0)) {
		return 0
	}
	return t.UnixMilli()<<12 | int64(t.Nanosecond()%int(time.Millisecond))<<12/int64(time.Millisecond)
}

func putTime(id *uuid.UUID, at int64) {
	binary.BigEndian.PutUint64(id[:8], uint64(at>>12)<<16|7<<12|uint64(at&0xfff))
	id[8] = id[8]&0x3f | 0x80
}

// auditMargin is how far an audit row's ID may be from its time. IDs ascend even if the clock goes back, and other
// programs may use another clock.
const auditMargin = time.Hour

// auditID returns an ID with the time of t plus a margin, or with its own if t is zero. uuid.Nil is before all rows of
// that time, uuid.Max after them.
func auditID(t time.Time, margin time.Duration, id uuid.UUID) string {
	if !t.IsZero() {
		putTime(&id, placeInTime(t.Add(margin)))
	}
	return id.String()
}

// unknown is the actor in audit rows of requests without a signed-in user.
const unknown Actor = "(unknown)"

// Denied adds an audit row for a request that was refused because its actor may not make it (contract 11.3). Target is
// the refused request, such as "POST delete": 1 to 500 characters, and never text that the request chose. An invalid
// actor is stored as "(unknown)". It is for code that authorizes requests, such as package dashboard.
//
// A flood of such requests writes few rows. For one actor and one target within 10 minutes it writes the first, the
// 10th, the 100th and so on, each with the number so far. Beyond 1,000 pairs of actor and target at once, all others
// count as one pair. The row is written even if ctx has ended.
func (o *access) Denied(ctx context.Context, actor Actor, target string) error {
	if actor.check() != nil {
		actor = unknown
	}
	if err := checkText("target", target, 1, maxTarget); err != nil {
		return fmt.Errorf("%s: %w", actionDenied, err)
	}
	of, count := o.denials.count(denial{actor, target}, o.opts.Clock.Now())
	if !powerOfTen(count.Requests) {
		return nil
	}
	return o.noteAnyway(ctx, of.actor, actionDenied, of.target, count)
}

// maxTarget is the length to which the audit shortens a target.
const maxTarget = 500

const (
	// denialsFor is how long denials of one actor and target are counted together.
	denialsFor = 10 * time.Minute
	// maxDenials is how many pairs are counted separately.
	maxDenials = 1000
)

// denials counts refused requests.
type denials struct {
	mu sync.Mutex
	of map[denial]denialCount
}

type denial struct {
	actor  Actor
	target string
}

// denialCount is the audit's detail of a denial.
type denialCount struct {
	Requests int64     `json:"requests"`
	Since    time.Time `json:"since"`
}

// count counts one more denial and returns the pair and the count that it belongs to.
func (d *denials) count(of denial, now time.Time) (denial, denialCount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[denial]denialCount{}
	}
	if _, known := d.of[of]; !known && len(d.of) >= maxDenials {
		for each, count := range d.of {
			if count.over(now) {
				delete(d.of, each)
			}
		}
		if len(d.of) >= maxDenials {
			of = denial{unknown, "more actors and targets than are told apart"}
		}
	}
	count := d.of[of]
	if count.over(now) {
		count = denialCount{Since: now}
	}
	count.Requests++
	d.of[of] = count
	return of, count
}

func (c denialCount) over(now time.Time) bool { return now.Sub(c.Since) >= denialsFor }

func powerOfTen(n int64) bool {
	for n > 1 && n%10 == 0 {
		n /= 10
	}
	return n == 1
}
