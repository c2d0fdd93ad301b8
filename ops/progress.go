package ops

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
)

// TopicProgress is how far a channel's topic is read in its group. Cleanup keeps rows that were received later, because
// redeliveries may need them (contract 6.5).
type TopicProgress struct {
	Channel string
	GroupID string
	Topic   string
	// Inline means that only markers are kept for it.
	Inline bool
	// Partitions counts the known partitions, and Unread how many of them have never been read to their end. The
	// topic's list of partitions counts among Unread while it is not known.
	Partitions, Unread int
	// CaughtUpAt is a moment such that everything that was in the topic then is accepted. It is zero if Unread is not.
	CaughtUpAt time.Time
	// DeclaredAt is when a worker last declared each of the partitions. Removed means that workers no longer declare
	// one of them: the channel, group, topic or partition was removed, or no worker of it runs. After seven days of
	// that, as UndeclaredFor counts them, cleanup no longer waits for it.
	DeclaredAt    time.Time
	Removed       bool
	UndeclaredFor time.Duration
	// Obstacle is why cleanup waits for the topic: it was never read to its end, or is more than ten minutes behind. It
	// is empty if cleanup does not wait.
	Obstacle string
}

// obstacle returns the text of Obstacle.
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
	return checkTexts(argument{"channel", t.Channel, 1, columns.MaxChannel},
		argument{"group", t.GroupID, 1, columns.MaxTopic}, argument{"topic", t.Topic, 1, columns.MaxTopic})
}

// removedAfter is after what time without a declaration a partition counts as removed.
const removedAfter = store.CountUndeclaredEvery

// Progress lists how far the topics of all channels are read, the one furthest behind first. It lists 1,000 at most.
func (o processes) Progress(ctx context.Context) ([]TopicProgress, error) {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	now, err := o.Now(ctx)
	if err != nil {
		return nil, fmt.Errorf("list progress: %w", err)
	}
	stored, err := o.store.TopicProgress(ctx, o.largePool(ctx), maxListed)
	if err != nil {
		return nil, fmt.Errorf("list progress: %w", err)
	}
	var topics []TopicProgress
	for _, of := range stored {
		t := TopicProgress{Channel: of.Channel, GroupID: of.GroupID, Topic: of.Topic, Inline: of.Inline,
			Partitions: of.Partitions, Unread: of.Unread, DeclaredAt: of.DeclaredAt, UndeclaredFor: of.UndeclaredFor,
			Removed: now.Sub(of.DeclaredAt) > removedAfter}
		if t.Unread == 0 {
			t.CaughtUpAt = of.CaughtUpAt
		}
		t.Obstacle = t.obstacle(now)
		topics = append(topics, t)
	}
	return topics, nil
}

// ForgetTopic makes cleanup stop waiting for a topic's partitions that no worker declares any more. If their group is
// consumed again after all, messages that cleanup has forgotten count as new.
//
// ErrNotFound means that there are none. ErrStillDeclared means that workers declare all of them, or did within the
// last ten minutes: then the topic has to be consumed.
func (o processes) ForgetTopic(ctx context.Context, actor Actor, topic TopicRef) error {
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	target := fmt.Sprintf("topic %s of channel %s in group %s", topic.Topic, topic.Channel, topic.GroupID)
	err := topic.check()
	var now time.Time
	if err == nil {
		now, err = o.Now(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", actionForgetTopic, target, err)
	}
	return o.audited(ctx, actor, actionForgetTopic, target, func(ctx context.Context, tx *gorm.DB) (any, error) {
		forgotten, known, err := o.store.ForgetTopic(ctx, tx.Statement.ConnPool, topic.Channel, topic.GroupID, topic.Topic,
			now.Add(-removedAfter))
		switch {
		case err != nil:
			return nil, err
		case forgotten == 0 && known == 0:
			return nil, fmt.Errorf("%w: no worker has declared it", ErrNotFound)
		case forgotten == 0:
			return nil, ErrStillDeclared
		}
		return map[string]any{"partitions": forgotten}, nil
	})
}
