package base

import (
	"context"
	"database/sql"
	"encoding/json"
	"sort"
	"time"

	"github.com/gorm-inbox/inbox/internal/fingerprint"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// Filled replaces nil by empty content, which is not stored as NULL.
func Filled(content []byte) []byte {
	if content == nil {
		return []byte{}
	}
	return content
}

// JSONList encodes an argument for a JSON function of the database: texts, numbers, booleans, or lists of them. Texts
// must have passed store.CheckText, because JSON would replace invalid UTF-8.
func JSONList[T any](list []T) string {
	if list == nil {
		return "[]"
	}
	return inJSON(list)
}

func inJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // texts, numbers, booleans, and lists and maps of them, have a form in JSON
	}
	return string(text)
}

// Failure returns a settlement's error text as its row stores it, and the fingerprint of that text. Both are nil if the
// row keeps its values.
func Failure(s store.Settlement) (text, named *string) {
	if s.LastError == nil {
		return nil, nil
	}
	clean := store.SanitizeError(*s.LastError)
	return &clean, new(fingerprint.Of(s.HandlerKey, clean))
}

// StoredMessage holds a claim's message columns, all NULL if the message's row is gone.
type StoredMessage struct {
	Number                                                                 sql.NullInt64
	Namespace, TransportName, MessageType, Source, ContentType, Properties sql.NullString
	Content, OrderingKey                                                   []byte
	ReceivedAt                                                             store.Stamp
}

// Message returns the message, nil if its row is gone.
func (m StoredMessage) Message(id string) *models.Message {
	if !m.Number.Valid {
		return nil
	}
	return &models.Message{
		ID: id, Namespace: m.Namespace.String, Number: models.MessageNumber(m.Number.Int64),
		TransportName: m.TransportName.String, Type: m.MessageType.String, Source: m.Source.String,
		Content: Filled(m.Content), ContentType: m.ContentType.String, SerializedProperties: m.Properties.String,
		OrderingKey: m.OrderingKey, ReceivedAt: m.ReceivedAt.Time,
	}
}

// SortClaims sorts claims by handler key, due time and ID. The database does not do it: it would copy every message
// once more to sort rows that are nearly in order.
func SortClaims(claims []store.Claim) { sort.Sort(byPlace(claims)) }

// Ended returns the keys of which a claim may have ended at their Bytes: those with fewer claims than their Limit that
// have reached them.
func Ended(limits []store.KeyLimit, claims []store.Claim) (keys []string) {
	got, bytes := map[string]int{}, map[string]int64{}
	for i := range claims {
		got[claims[i].HandlerKey]++
		bytes[claims[i].HandlerKey] += int64(claims[i].MessageBytes)
	}
	for _, l := range limits {
		if n := got[l.HandlerKey]; n > 0 && n < l.Limit && bytes[l.HandlerKey] >= l.EndsAt() {
			keys = append(keys, l.HandlerKey)
		}
	}
	return keys
}

// byPlace compares claims where they are. slices.SortFunc would pass copies of them, which costs more than to compare
// them.
type byPlace []store.Claim

func (c byPlace) Len() int      { return len(c) }
func (c byPlace) Swap(i, j int) { c[i], c[j] = c[j], c[i] }

func (c byPlace) Less(i, j int) bool {
	a, b := &c[i], &c[j]
	if a.HandlerKey != b.HandlerKey {
		return a.HandlerKey < b.HandlerKey
	}
	if due := a.Due.Compare(b.Due); due != 0 {
		return due < 0
	}
	return a.StatusID < b.StatusID
}

func (c Common) Siblings(ctx context.Context, messageNumbers []int64, keys []string) ([]store.Sibling, error) {
	siblings, err := inParts(c, messageNumbers, func(part any) ([]store.Sibling, error) {
		return store.Query(ctx, c.Pool(ctx), c.Text(c.sql.Siblings), scanSibling, part, listArgument(c, keys))
	})
	return siblings, Doing("read sibling statuses", err)
}

// scanSibling scans a status of a message under another key.
func scanSibling(rows *sql.Rows, s *store.Sibling) error {
	var lane LaneColumns
	err := rows.Scan(&s.MessageNumber, &s.StatusID, &s.MessageID, &s.HandlerKey, &s.Version, &s.ErrorCount,
		&s.AbandonedCount, &s.InterruptedCount, &lane.Handler, &lane.Key, &s.Processing, &s.Poisoned, &s.Completed,
		&s.Outcome)
	s.Lane = lane.Lane()
	return err
}

// IdentifiedState is a status ID with the status's current state.
type IdentifiedState struct {
	ID string
	store.State
}

// ScanState scans a status ID and the status's current state.
func ScanState(rows *sql.Rows, s *IdentifiedState) error {
	return rows.Scan(&s.ID, &s.Version, &s.Completed, &s.Poisoned, &s.Processing)
}

// ByID maps status IDs to states.
func ByID(rows []IdentifiedState) map[string]store.State {
	states := make(map[string]store.State, len(rows))
	for _, row := range rows {
		states[row.ID] = row.State
	}
	return states
}

// RefColumns are the columns of a store.Ref, in the order of ScanOpenClaim.
const RefColumns = `id, message_number, message_id, handler_key, version, error_count, abandoned_count, interrupted_count, lane_handler, lane_key`

// OpenClaimRow is a row of the query for open claims.
type OpenClaimRow struct {
	store.OpenClaim
	walk int
	due  time.Time
	last bool // of a full page
}

// ScanOpenClaim scans the index of a walk, when the row is due, whether it is the last one of a full page, its worker,
// when its processing started, and RefColumns.
func ScanOpenClaim(rows *sql.Rows, r *OpenClaimRow) error {
	var lane LaneColumns
	var due, started store.Stamp
	var worker sql.NullString
	err := rows.Scan(&r.walk, &due, &r.last, &worker, &started, &r.StatusID, &r.MessageNumber, &r.MessageID, &r.HandlerKey,
		&r.Version, &r.ErrorCount, &r.AbandonedCount, &r.InterruptedCount, &lane.Handler, &lane.Key)
	r.Lane, r.WorkerID, r.StartedAt, r.due = lane.Lane(), worker.String, started.Time, due.Time
	return err
}

// OpenClaims arranges the rows of so many walks, which are in the order of their walks.
func OpenClaims(walks int, rows []OpenClaimRow) []store.OpenClaims {
	pages := make([]store.OpenClaims, walks)
	for _, row := range rows {
		page := &pages[row.walk]
		if !row.StartedAt.IsZero() {
			page.Claims = append(page.Claims, row.OpenClaim)
		}
		if row.last {
			page.Next = &store.Place{Due: row.due, StatusID: row.StatusID}
		}
	}
	return pages
}

// BacklogRow is one row of the backlog query.
type BacklogRow struct {
	Key                                           string
	due, behind, processing, waiting, poisoned, n int
	oldest                                        store.Stamp
}

// ScanBacklog scans the counts of a handler key.
func ScanBacklog(rows *sql.Rows, c *BacklogRow) error {
	return rows.Scan(&c.Key, &c.due, &c.behind, &c.processing, &c.n, &c.oldest, &c.waiting, &c.poisoned)
}

// Backlog converts the counts. most is the bound of each count: one that reaches it is capped.
func (c BacklogRow) Backlog(most int) store.Backlog {
	return store.Backlog{HandlerKey: c.Key, Due: c.due, Waiting: c.behind + c.waiting, Processing: c.processing,
		Poisoned: c.poisoned, OldestDue: c.oldest.Time, Capped: c.n >= most || c.waiting >= most || c.poisoned >= most}
}

// WindowRow is a row of a window: one to claim, the last of a full window, or both.
type WindowRow struct {
	store.Place
	IsLast, IsOurs bool
}

// ScanWindowRow reads a WindowRow whose time is one of PostgreSQL's.
func ScanWindowRow(rows *sql.Rows, r *WindowRow) error {
	return rows.Scan(&r.Due, &r.StatusID, &r.IsLast, &r.IsOurs)
}

// WindowOf returns the window that begins after a place and has these rows.
func WindowOf(after *store.Place, rows []WindowRow) store.Window {
	w := store.Window{After: after}
	for _, r := range rows {
		if r.IsLast {
			w.End = &r.Place
		}
		if r.IsOurs {
			w.StatusIDs = append(w.StatusIDs, r.StatusID)
		}
	}
	return w
}

// Place returns where the row is in its walk.
func (r OpenClaimRow) Place() *store.Place { return &store.Place{Due: r.due, StatusID: r.StatusID} }
