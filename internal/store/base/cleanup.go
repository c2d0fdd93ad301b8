package base

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

func (c Common) DeleteMarkers(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.DeleteMarkers), c.form.Time(before), limit)
	return deleted, Doing("delete expired markers", err)
}

func (c Common) DeleteAudit(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.DeleteAudit), c.form.Time(before), limit)
	return deleted, Doing("delete old audit rows", err)
}

func (c Common) DeleteRejected(ctx context.Context, before time.Time, limit int) (int64, error) {
	deleted, err := store.Exec(ctx, c.Pool(ctx), c.Text(c.sql.DeleteRejected), c.form.Time(before), limit)
	return deleted, Doing("delete old rejected messages", err)
}

// WalkEnd returns where the walk ends: Until, but no later than the latest cutoff.
func WalkEnd(r store.CleanupRequest) time.Time {
	latest := r.Latest()
	if r.Until.IsZero() || r.Until.After(latest) {
		return latest
	}
	return r.Until
}

// expired reports whether a status is to be deleted.
func expired(r store.CleanupRequest, s models.HandlerStatus) bool {
	cutoff := r.Cutoff
	for _, own := range r.HandlerCutoffs {
		if own.HandlerKey == s.HandlerKey {
			cutoff = own.Cutoff
		}
	}
	return s.CompletedAt != nil && s.CompletedAt.Before(cutoff)
}

// Candidate is a message that a walk has examined.
type Candidate struct {
	store.CleanupCursor
	Expired bool
}

// Walked returns the result of one batch of a walk.
func Walked(r store.CleanupRequest, candidates []Candidate) store.ExpiredBatch {
	found := store.ExpiredBatch{Next: r.After, Done: len(candidates) < r.Limit}
	for _, c := range candidates {
		if c.Expired {
			found.MessageNumbers = append(found.MessageNumbers, c.MessageNumber)
		}
	}
	if n := len(candidates); n > 0 {
		found.Next = candidates[n-1].CleanupCursor
		found.Next.ReceivedAt = found.Next.ReceivedAt.UTC()
	}
	return found
}

// size is a message's number and its size in bytes.
type size struct {
	number int64
	bytes  int64
}

func (c Common) LoadExpired(
	ctx context.Context, req store.CleanupRequest, numbers []int64, maxBytes int64,
) ([]store.ExpiredMessage, int, error) {
	pool := c.Singles.WithoutJIT().Pool(ctx)
	sizes, err := inParts(c, numbers, func(part any) ([]size, error) {
		return store.Query(ctx, pool, c.Text(c.sql.ExpiredSizes), func(rows *sql.Rows, s *size) error {
			return rows.Scan(&s.number, &s.bytes)
		}, part)
	})
	if err != nil {
		return nil, 0, Doing("size expired messages", err)
	}
	numbers = fitBytes(numbers, sizes, maxBytes)
	messages, err := inParts(c, numbers, func(part any) ([]models.Message, error) {
		return store.Query(ctx, pool, c.Text(c.sql.ExpiredMessages), ScanMessage, part)
	})
	if err != nil {
		return nil, 0, Doing("load expired messages", err)
	}
	statuses, err := inParts(c, numbers, func(part any) ([]models.HandlerStatus, error) {
		return store.Query(ctx, pool, c.Text(c.sql.ExpiredStatuses), scanStatus, part)
	})
	if err != nil {
		return nil, 0, Doing("load expired statuses", err)
	}
	return assemble(req, numbers, messages, statuses), len(numbers), nil
}

// fitBytes returns the first of the numbers whose messages have at most maxBytes together, but at least one number.
// Messages that no longer exist count nothing.
func fitBytes(numbers []int64, sizes []size, maxBytes int64) []int64 {
	bytes := make(map[int64]int64, len(sizes))
	for _, s := range sizes {
		bytes[s.number] = s.bytes
	}
	var sum int64
	for i, number := range numbers {
		if sum += bytes[number]; i > 0 && sum > maxBytes {
			return numbers[:i]
		}
	}
	return numbers
}

// assemble joins messages and their statuses, in the order of the numbers. It leaves out a message that has statuses of
// which none is to be deleted.
func assemble(
	r store.CleanupRequest, numbers []int64, messages []models.Message, statuses []models.HandlerStatus,
) []store.ExpiredMessage {
	slices.SortFunc(statuses, func(a, b models.HandlerStatus) int { return cmp.Compare(a.Sequence, b.Sequence) })
	byMessage := map[int64][]models.HandlerStatus{}
	for _, s := range statuses {
		byMessage[s.MessageNumber] = append(byMessage[s.MessageNumber], s)
	}
	byNumber := make(map[int64]models.Message, len(messages))
	for _, m := range messages {
		byNumber[int64(m.Number)] = m
	}
	var found []store.ExpiredMessage
	for _, number := range numbers {
		message, stored := byNumber[number]
		if !stored {
			continue
		}
		each := store.ExpiredMessage{Message: message}
		for _, s := range byMessage[number] {
			if expired(r, s) {
				each.Statuses = append(each.Statuses, s)
			} else {
				each.Stays = true
			}
		}
		if len(each.Statuses) > 0 || !each.Stays {
			found = append(found, each)
		}
	}
	return found
}

// Deletions returns the rows to delete: the numbers of whole messages, and statuses.
func Deletions(expired []store.ExpiredMessage) (whole []int64, statuses []models.HandlerStatus) {
	whole = []int64{} // nil would be NULL
	for _, e := range expired {
		if !e.Stays {
			whole = append(whole, int64(e.Message.Number))
		}
		statuses = append(statuses, e.Statuses...)
	}
	return whole, statuses
}

// ScanMessage scans a message with its content. A separate column distinguishes an empty ordering key from none.
func ScanMessage(rows *sql.Rows, m *models.Message) error {
	var received store.Stamp
	var ordered bool
	err := rows.Scan(&m.ID, &m.Namespace, &m.Number, &m.TransportName, &m.Type, &m.Source, &m.Content, &m.ContentType,
		&m.SerializedProperties, &m.OrderingKey, &ordered, &received)
	m.ReceivedAt = received.Time
	m.Content = Filled(m.Content) // some drivers read an empty blob as nil
	if ordered {
		m.OrderingKey = Filled(m.OrderingKey)
	}
	return err
}

// scanStatus scans all columns of a status.
func scanStatus(rows *sql.Rows, s *models.HandlerStatus) error {
	var created, started, next, published, completed, poisoned store.Stamp
	err := rows.Scan(&s.ID, &s.MessageNumber, &s.MessageID, &s.HandlerKey, &s.Sequence, &s.ErrorCount, &s.AbandonedCount,
		&s.InterruptedCount, &s.RequeuedCount, &s.MessageBytes, &s.LastError, &s.Fingerprint, &created,
		&started, &s.WorkerID, &next, &s.IsPoisoned, &published, &completed, &s.Outcome, &s.Version,
		&s.LaneHandler, &s.LaneKey, &s.IsWaiting, &s.HoldsLane, &poisoned, &s.Attempts)
	s.CreatedAt, s.ProcessingStartedAt = created.Time, started.Pointer()
	s.NextAttemptAt, s.PublishedAt = next.Pointer(), published.Pointer()
	s.CompletedAt, s.PoisonedAt = completed.Pointer(), poisoned.Pointer()
	return err
}

// PartitionColumns are the columns that ScanPartition scans.
const PartitionColumns = `channel, group_id, topic, "partition", inline, caught_up_at, declared_at, undeclared_for, counted_at`

// ScanPartition scans a partition's progress.
func ScanPartition(rows *sql.Rows, p *models.Partition) error {
	var caughtUp, declared, counted store.Stamp
	err := rows.Scan(&p.Channel, &p.GroupID, &p.Topic, &p.Partition, &p.Inline, &caughtUp, &declared, &p.UndeclaredFor,
		&counted)
	p.CaughtUpAt, p.DeclaredAt, p.CountedAt = caughtUp.Pointer(), declared.Time, counted.Time
	return err
}

func (c Common) FurthestBehind(ctx context.Context, inline bool) (p models.Partition, ok bool, err error) {
	rows, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.FurthestBehind), ScanPartition, inline)
	if err != nil || len(rows) == 0 {
		return p, false, Doing("find the partition that is furthest behind", err)
	}
	return rows[0], true, nil
}

func (c Common) ForgetPartitions(ctx context.Context, undeclaredFor time.Duration) ([]models.Partition, error) {
	forgotten, err := store.Query(ctx, c.Pool(ctx), c.Text(c.sql.ForgetPartitions), ScanPartition,
		int64(undeclaredFor/time.Second))
	return forgotten, Doing("forget removed partitions", err)
}
