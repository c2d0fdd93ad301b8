package ops

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
)

// TopicProgress is how far a channel's topic is read in its group. Cleanup keeps what redeliveries may
// need that came later (contract 6.5).
type TopicProgress struct {
	Channel string
	GroupID string
	Topic   string
	// Inline means that only markers are kept for it.
	Inline bool
	// Partitions counts the partitions that are known, and Unread those of them that have never been
	// read to their end. The topic's list of partitions counts among Unread while it is not known.
	Partitions, Unread int
	// CaughtUpAt is a moment such that everything that was in the topic then is accepted. It is zero if
	// Unread is not.
	CaughtUpAt time.Time
	// DeclaredAt is when a worker last declared each of the partitions. Removed means that workers no
	// longer declare one of them: the channel, group, topic or partition was removed, or no worker of it
	// runs. After seven days of that, as UndeclaredFor counts them, cleanup no longer waits for it.
	DeclaredAt    time.Time
	Removed       bool
	UndeclaredFor time.Duration
	// Obstacle is why cleanup waits for the topic: it was never read to its end, or is more than ten minutes behind. It
	// is empty if cleanup does not wait.
	Obstacle string
}

// obstacle returns what Obstacle documents.
func (t *TopicProgress) obstacle(now time.Time) (why string) {
	switch {
	case t.Unread > 0 && t.Partitions == 0:
		why = "its partitions are not known yet"
	case t.Unread > 0:
		why = fmt.Sprintf("%d of its partitions have never been read to the end", min(t.Unread, t.Partitions))
	case now.Sub(t.CaughtUpAt) > removedAfter:
		why = "it is read up to what it held at " + t.CaughtUpAt.Format(time.RFC3339)
	default:
		return ""
	}
	if t.Removed {
		why += ", and no worker has declared it since " + t.DeclaredAt.Format(time.RFC3339)
	}
	return why
}

// TopicRef names a topic that a channel consumes in a group.
type TopicRef struct {
	Channel string
	GroupID string
	Topic   string
}

func (t TopicRef) check() error {
	if err := checkText("channel", t.Channel, 1, columns.MaxChannel); err != nil {
		return err
	}
	if err := checkText("group", t.GroupID, 1, columns.MaxTopic); err != nil {
		return err
	}
	return checkText("topic", t.Topic, 1, columns.MaxTopic)
}

// removedAfter is after what time without a declaration a partition counts as removed.
const removedAfter = store.CountUndeclaredEvery

// Progress lists how far the topics of all channels are read, the one furthest behind first. It lists
// 1,000 at most.
func (o *Ops) Progress(ctx context.Context) ([]TopicProgress, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	now, err := o.store.Clock(ctx, o.opts.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("list progress: %w", err)
	}
	topics, err := readMany(ctx, o, topicProgress, func(rows *sql.Rows, t *TopicProgress) error {
		var inline int
		var undeclared int64
		var caughtUp, declared store.Stamp
		err := rows.Scan(&t.Channel, &t.GroupID, &t.Topic, &inline, &t.Partitions, &t.Unread, &caughtUp, &declared,
			&undeclared)
		t.Inline, t.DeclaredAt, t.UndeclaredFor = inline > 0, declared.Time, time.Duration(undeclared)*time.Second
		t.Removed = now.Sub(t.DeclaredAt) > removedAfter
		if t.Unread == 0 {
			t.CaughtUpAt = caughtUp.Time
		}
		t.Obstacle = t.obstacle(now)
		return err
	}, maxListed)
	if err != nil {
		return nil, fmt.Errorf("list progress: %w", err)
	}
	return topics, nil
}

// ForgetTopic lets cleanup no longer wait for partitions of a topic that no worker declares any more.
// Their group may then have messages again that cleanup has forgotten, if it is consumed after all.
//
// ErrNotFound means that there are none. ErrStillDeclared means that workers declare all of them, or
// did within the last ten minutes: what holds cleanup back is then to be consumed.
func (o *Ops) ForgetTopic(ctx context.Context, actor Actor, topic TopicRef) error {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	target := fmt.Sprintf("topic %s of channel %s in group %s", topic.Topic, topic.Channel, topic.GroupID)
	err := topic.check()
	var now time.Time
	if err == nil {
		now, err = o.store.Clock(ctx, o.opts.Clock.Now())
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", actionForgetTopic, target, err)
	}
	return o.audited(ctx, actor, actionForgetTopic, target, func(ctx context.Context, tx *gorm.DB) (any, error) {
		pool := tx.Statement.ConnPool
		forgotten, err := o.exec(ctx, pool, forgetTopic, topic.Channel, topic.GroupID, topic.Topic,
			o.stamp(now.Add(-removedAfter)))
		if err != nil {
			return nil, err
		}
		if forgotten == 0 {
			known, err := query(ctx, o, pool, countPartitions, store.Value[int], topic.Channel, topic.GroupID, topic.Topic)
			switch {
			case err != nil:
				return nil, err
			case known[0] == 0:
				return nil, fmt.Errorf("%w: no worker has declared it", ErrNotFound)
			}
			return nil, ErrStillDeclared
		}
		return map[string]any{"partitions": forgotten}, nil
	})
}

// These statements use partitions_pkey, or read the whole table, which has one row per partition.
const (
	topicProgress = `
SELECT channel, group_id, topic, max(CASE WHEN inline THEN 1 ELSE 0 END), sum(CASE WHEN "partition" >= 0 THEN 1 ELSE 0 END),
	sum(CASE WHEN caught_up_at IS NULL THEN 1 ELSE 0 END), min(caught_up_at), min(declared_at), max(undeclared_for)
FROM {partitions} GROUP BY channel, group_id, topic
ORDER BY sum(CASE WHEN caught_up_at IS NULL THEN 1 ELSE 0 END) = 0, min(caught_up_at), channel, group_id, topic LIMIT $1`

	forgetTopic = `DELETE FROM {partitions} WHERE channel = $1 AND group_id = $2 AND topic = $3 AND declared_at < $4`

	countPartitions = `SELECT count(*) FROM {partitions} WHERE channel = $1 AND group_id = $2 AND topic = $3`
)
