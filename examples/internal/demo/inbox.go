package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/gorm-inbox/inbox/models"
)

// Tally counts what an inbox has stored. Each status is in one of the states completed, poisoned,
// waiting and claimed; those that are retrying are waiting or claimed.
type Tally struct {
	Accepted, Rejected                              int64
	Completed, Poisoned, Waiting, Claimed, Retrying int64
}

// Settled counts the statuses that nothing will happen to any more.
func (t Tally) Settled() int64 { return t.Completed + t.Poisoned }

// Plus returns the sum of the counts of two inboxes.
func (t Tally) Plus(u Tally) Tally {
	return Tally{Accepted: t.Accepted + u.Accepted, Rejected: t.Rejected + u.Rejected,
		Completed: t.Completed + u.Completed, Poisoned: t.Poisoned + u.Poisoned, Waiting: t.Waiting + u.Waiting,
		Claimed: t.Claimed + u.Claimed, Retrying: t.Retrying + u.Retrying}
}

// String returns the counts as a line.
func (t Tally) String() string {
	return fmt.Sprintf("accepted %d, rejected %d; completed %d, waiting %d, claimed %d, retrying %d, poisoned %d",
		t.Accepted, t.Rejected, t.Completed, t.Waiting, t.Claimed, t.Retrying, t.Poisoned)
}

// ReadTally counts. Before the inbox's tables are created everything is zero.
func ReadTally(ctx context.Context, db *gorm.DB) (t Tally, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	db = db.WithContext(ctx)
	if !db.Migrator().HasTable(&models.Meta{}) { // it is created last, and on MySQL each table alone
		return t, ctx.Err()
	}
	const pending = "completed_at IS NULL AND NOT is_poisoned"
	count := func(condition string) string {
		return "COALESCE(SUM(CASE WHEN " + condition + " THEN 1 ELSE 0 END), 0)"
	}
	err = errors.Join(
		db.Model(&models.HandlerStatus{}).Select(
			count("completed_at IS NOT NULL")+" AS completed, "+
				count("is_poisoned AND completed_at IS NULL")+" AS poisoned, "+
				count(pending+" AND processing_started_at IS NULL")+" AS waiting, "+
				count(pending+" AND processing_started_at IS NOT NULL")+" AS claimed, "+
				count(pending+" AND error_count > 0")+" AS retrying").Take(&t).Error,
		db.Model(&models.Message{}).Count(&t.Accepted).Error,
		db.Model(&models.RejectedMessage{}).Count(&t.Rejected).Error)
	if err != nil {
		return t, fmt.Errorf("read the inbox's progress: %w", err)
	}
	return t, nil
}

// Stored is everything that an inbox has stored.
type Stored struct {
	Messages []Message
	Statuses []Status
	Rejected []Record
}

// Message identifies a stored message.
type Message struct{ ID, Type string }

// String returns the ID.
func (m Message) String() string { return m.ID }

// Status is what is stored about one handler and one message.
type Status struct {
	MessageID, HandlerKey        string
	Completed, Poisoned, Claimed bool
	ErrorCount                   int
	Outcome                      models.Outcome
}

// Processed reports whether the handler has completed: not an operator who discarded the message.
func (s Status) Processed() bool { return s.Completed && s.Outcome == models.OutcomeProcessed }

// String identifies the status and says what state it is in.
func (s Status) String() string {
	state := "pending"
	switch {
	case s.Claimed:
		state = "still claimed although the workers have stopped"
	case s.Processed() && !s.Poisoned:
		state = "completed"
	case s.Completed:
		state = string(s.Outcome)
	case s.Poisoned:
		state = "poisoned"
	}
	return s.MessageID + ", " + s.HandlerKey + ": " + state
}

// Record is the position of a record in its topic.
type Record struct {
	Partition int32
	Offset    int64
}

// String returns the position.
func (r Record) String() string { return fmt.Sprintf("record %d/%d", r.Partition, r.Offset) }

// ReadStored reads an inbox's tables.
func ReadStored(ctx context.Context, db *gorm.DB) (s Stored, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db = db.WithContext(ctx)
	var rejected []models.RejectedMessage
	err = errors.Join(
		db.Model(&models.Message{}).Select("id, type").Find(&s.Messages).Error,
		db.Model(&models.HandlerStatus{}).Select("message_id, handler_key, completed_at IS NOT NULL AS completed, "+
			"is_poisoned AS poisoned, processing_started_at IS NOT NULL AS claimed, error_count, outcome").
			Find(&s.Statuses).Error,
		db.Select("Partition", "Offset").Find(&rejected).Error)
	if err != nil {
		return s, fmt.Errorf("read what the inbox has stored: %w", err)
	}
	for _, r := range rejected {
		s.Rejected = append(s.Rejected, Record{Partition: r.Partition, Offset: r.Offset})
	}
	return s, nil
}

// readTimeout is how long whole tables may take.
const readTimeout = 2 * time.Minute

// Read reads whole tables into slices of rows, in the order of their keys.
func Read(ctx context.Context, db *gorm.DB, tables ...any) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	key := clause.OrderByColumn{Column: clause.Column{Table: clause.CurrentTable, Name: clause.PrimaryKey}}
	for _, rows := range tables {
		if err := db.WithContext(ctx).Order(key).Find(rows).Error; err != nil {
			return fmt.Errorf("read %T: %w", rows, err)
		}
	}
	return nil
}
