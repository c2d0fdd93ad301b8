package kafkaconsumer

import "time"

// Progress is how far the topics of a channel are read in its group (contract 6.5).
type Progress struct {
	Channel, GroupID string
	Topics           []TopicProgress // in the order of Config.Topics
}

// TopicProgress is what a consumer knows of how far one of its topics is read. Its times have readings of
// the monotonic clock.
type TopicProgress struct {
	Topic string
	// Partitions is how many partitions the topic had at ListedAt; 0 if it did not exist. ListedAt is
	// zero while no broker has answered that.
	Partitions int
	ListedAt   time.Time
	// CaughtUp has for partitions that this consumer has or had a moment such that everything that was
	// in the partition then is accepted and its offset committed.
	CaughtUp map[int]time.Time
}

// listing is how many partitions a topic had when they were asked for.
type listing struct {
	at         time.Time
	partitions int
}

type partitionKey struct {
	topic string
	id    int
}

// Progress returns the progress of each configured topic. What partitions have caught up to does not
// end with their assignment.
func (c *Consumer) Progress() Progress {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keepProgress()
	all := make([]TopicProgress, len(c.cfg.Topics))
	for i, topic := range c.cfg.Topics {
		l := c.listings[topic]
		all[i] = TopicProgress{Topic: topic, Partitions: l.partitions, ListedAt: l.at, CaughtUp: map[int]time.Time{}}
		for key, at := range c.caughtUp {
			if key.topic == topic {
				all[i].CaughtUp[key.id] = at
			}
		}
	}
	return Progress{Channel: c.channel, GroupID: c.cfg.GroupID, Topics: all}
}

// keepProgress copies what the session's partitions have caught up to, because it stays true when the
// session ends. The lock is held.
func (c *Consumer) keepProgress() {
	if c.session == nil {
		return
	}
	if c.caughtUp == nil {
		c.caughtUp = map[partitionKey]time.Time{}
	}
	for _, p := range c.session.partitions {
		if at := p.caughtUpAt(); !at.IsZero() {
			c.caughtUp[partitionKey{p.topic, p.id}] = at
		}
	}
}

// listed stores an answer about the topics, which was asked for at the given time.
func (c *Consumer) listed(existing map[string]int, missing []string, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listings == nil {
		c.listings = map[string]listing{}
	}
	for topic, partitions := range existing {
		c.listings[topic] = listing{asked, partitions}
	}
	for _, topic := range missing {
		c.listings[topic] = listing{at: asked}
	}
}

func (p *partition) caughtUpAt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.caughtUp
}
