package kafkaconsumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/models"
)

// noRequests completes an acceptor in tests without operators.
type noRequests struct{}

func (noRequests) PartitionRequests(context.Context, string) ([]models.PartitionRequest, error) {
	return nil, nil
}

func (noRequests) CarryOut(
	context.Context, models.PartitionRequest, *envelope.Received, *envelope.Gap,
) (envelope.Disposition, error) {
	return envelope.Halt, nil
}

type acceptNothing struct{ noRequests }

func (acceptNothing) AcceptGap(context.Context, string, envelope.Gap) (envelope.Disposition, error) {
	return envelope.Halt, nil
}

func (acceptNothing) AcceptRecords(context.Context, string, []envelope.Received) ([]envelope.Result, error) {
	return nil, nil
}

// TestConsumerBetweenGenerationsHasNotCaughtUp covers the moment between two generations, when
// there is no session. It must not look like a member that has no partitions to catch up with.
func TestConsumerBetweenGenerationsHasNotCaughtUp(t *testing.T) {
	c, err := New("c", Config{Brokers: []string{"127.0.0.1:1"}, Topics: []string{"orders"}, GroupID: "g",
		Decoder: envelope.DecoderConfig{Type: "t", ID: envelope.KafkaCoordinates()}}, acceptNothing{}, nil, nil)
	require.NoError(t, err)
	require.False(t, c.Health().CaughtUp(), "before the start")
	c.setState(StateJoining)
	require.False(t, c.Health().CaughtUp())
	s := newSession(c, &kafka.Generation{}, t.Context(), nil, nil, nil)
	c.committing.Begin(nil, errors.New("refused"))
	c.joined(s)
	require.NoError(t, c.Health().CommitErr, "it has nothing to commit")
	require.True(t, c.Health().CaughtUp(), "a member without partitions")
	s.end()
	c.left()
	require.False(t, c.Health().CaughtUp())
}

// TestFailedCommitIsOverOnceAnotherMemberCommitted covers a quiet partition that another member had in between.
func TestFailedCommitIsOverOnceAnotherMemberCommitted(t *testing.T) {
	c, err := New("c", Config{Brokers: []string{"127.0.0.1:1"}, Topics: []string{"orders"}, GroupID: "g",
		Decoder: envelope.DecoderConfig{Type: "t", ID: envelope.KafkaCoordinates()}}, acceptNothing{}, nil, nil)
	require.NoError(t, err)
	gen := &kafka.Generation{Assignments: map[string][]kafka.PartitionAssignment{"orders": {{}}}}
	s := newSession(c, gen, t.Context(), nil, map[string]int{"orders": 1},
		map[string]map[int]position{"orders": {0: {offset: 9}}})
	defer s.end()
	c.committing.Begin(nil, errors.New("refused"))
	c.joined(s)
	p := s.partitions[0]
	require.True(t, p.assigned(9))
	p.begin(9, false)
	require.NoError(t, (&committer{session: s}).flush(t.Context(), t.Context()))
	require.ErrorContains(t, c.Health().Err(), "offsets cannot be committed", "it may have to deliver it again")
	p.fetched(time.Now(), 9, 9, 9, 0)
	require.NoError(t, (&committer{session: s}).flush(t.Context(), t.Context()))
	require.NoError(t, c.Health().Err())
}

// now returns a partition's health where nothing stalls.
func now(p *partition) PartitionHealth { return p.health(false, time.Hour, time.Time{}) }

// TestPartitionCatchesUpToTheHighWatermarkOfItsAssignment proves contract 6.5.
func TestPartitionCatchesUpToTheHighWatermarkOfItsAssignment(t *testing.T) {
	p := newPartition(t.Context(), "orders", 0, 5)
	require.False(t, now(p).CaughtUp, "nothing is known of it")
	p.begin(5, false)
	require.True(t, p.assigned(10))
	require.False(t, now(p).CaughtUp, "nothing was fetched")
	p.fetched(time.Now(), 8, 9, 9, 0)
	p.accept(9, time.Time{})
	require.False(t, now(p).CaughtUp, "the first answer to a fetch may come from a leader that is behind")
	p.fetched(time.Now(), 20, 20, 20, 0)
	p.accept(10, time.Time{})
	require.True(t, now(p).CaughtUp, "what came after the assignment does not count")

	unasked := newPartition(t.Context(), "orders", 4, 5)
	unasked.begin(5, false)
	unasked.fetched(time.Now(), 5, 5, 5, 0)
	require.False(t, now(unasked).CaughtUp, "the watermark is not known yet")
	require.False(t, unasked.assigned(4), "a leader that knows less than is committed is not believed")
	require.False(t, now(unasked).CaughtUp)

	empty := newPartition(t.Context(), "orders", 1, -1)
	empty.begin(0, false)
	require.True(t, empty.assigned(0))
	empty.fetched(time.Now(), 0, 0, 0, 0)
	require.True(t, now(empty).CaughtUp, "there was nothing")

	failing := newPartition(t.Context(), "orders", 2, 5)
	failing.begin(5, false)
	require.True(t, failing.assigned(5))
	failing.failing(kafka.NotLeaderForPartition)
	require.False(t, now(failing).CaughtUp, "the log may not hold what it should")

	halted := newPartition(t.Context(), "orders", 3, 5)
	halted.begin(5, false)
	require.True(t, halted.assigned(10))
	halted.fetched(time.Now(), 8, 10, 10, 0)
	halted.halt(recordHalt(kafka.Unknown, true))
	require.False(t, now(halted).CaughtUp)

	shorter := newPartition(t.Context(), "orders", 5, 100)
	shorter.begin(100, false)
	require.False(t, shorter.assigned(10), "the log ends before what is committed")
	require.Error(t, now(shorter).WatermarkErr)
	shorter.restart(0, 10)
	require.NoError(t, now(shorter).WatermarkErr, "the log that is read from its start has told its end")
	require.False(t, now(shorter).CaughtUp)
	require.True(t, shorter.assigned(20), "an answer that is late")
	shorter.fetched(time.Now(), 10, 20, 20, 0)
	shorter.accept(10, time.Time{})
	require.True(t, now(shorter).CaughtUp, "what the log held when its gap was passed")
	for _, each := range []*partition{p, unasked, empty, failing, halted, shorter} {
		each.stop()
	}
}

// set is a clock that tests move.
type set struct{ now time.Time }

func (s *set) Now() time.Time { return s.now }

// TestPartitionStallsOnlyWithoutAnotherReason proves contract 7.8.
func TestPartitionStallsOnlyWithoutAnotherReason(t *testing.T) {
	const timeout = time.Minute
	begun := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		do     func(p *partition, clock *set)
		full   bool
		stalls bool
	}{
		"fetched and not accepted": {do: func(p *partition, _ *set) { p.fetched(time.Now(), 8, 10, 10, 0) }, stalls: true},
		"nothing fetched though there is something": {
			do: func(p *partition, _ *set) { p.fetched(time.Now(), 5, 5, 5, 0); p.stale(); p.refreshed(10, 10) }, stalls: true,
		},
		"accepted some, then stuck": {
			do:     func(p *partition, clock *set) { p.fetched(time.Now(), 8, 10, 10, 0); p.accept(7, clock.Now()) },
			stalls: true,
		},
		"nothing to read":     {do: func(p *partition, _ *set) { p.fetched(time.Now(), 5, 5, 5, 0) }},
		"an open transaction": {do: func(p *partition, _ *set) { p.fetched(time.Now(), 5, 10, 5, 0) }},
		"halted": {do: func(p *partition, _ *set) {
			p.fetched(time.Now(), 8, 10, 10, 0)
			p.halt(recordHalt(kafka.Unknown, true))
		}},
		"fetching fails":         {do: func(p *partition, _ *set) { p.fetched(time.Now(), 8, 10, 10, 0); p.failing(kafka.Unknown) }},
		"nothing is known of it": {do: func(*partition, *set) {}},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &set{begun}
			p := newPartition(t.Context(), "orders", 0, 5)
			defer p.stop()
			p.clock, p.readCommitted, p.assignedAt = clock, true, clock.now
			p.begin(5, false)
			test.do(p, clock)
			clock.now = begun.Add(timeout - time.Nanosecond)
			require.Zero(t, p.health(false, timeout, time.Time{}).StalledSince, "it was just assigned")
			clock.now = begun.Add(timeout)
			h := p.health(false, timeout, time.Time{})
			require.Equal(t, test.stalls, !h.StalledSince.IsZero())
			require.Zero(t, p.health(false, timeout, begun.Add(time.Nanosecond)).StalledSince, "accepting has failed meanwhile")
			if test.stalls {
				require.ErrorContains(t, h.Problem(), "orders/0 makes no progress since 2026-01-01T12:00:00Z")
				p.accept(9, clock.now)
				require.Zero(t, p.health(false, timeout, time.Time{}).StalledSince, "progress")
				clock.now = clock.now.Add(timeout)
				require.Equal(t, begun.Add(timeout), p.health(false, timeout, time.Time{}).StalledSince, "and none since")
				p.accept(10, clock.now)
				clock.now = clock.now.Add(time.Hour)
				p.fetched(time.Now(), 11, 12, 12, 0)
				require.Zero(t, p.health(false, timeout, time.Time{}).StalledSince, "after an idle hour there is something new")
			}
		})
	}
	t.Run("fetching failed for long", func(t *testing.T) {
		clock := &set{begun}
		p := newPartition(t.Context(), "orders", 0, 5)
		defer p.stop()
		p.clock = clock
		p.begin(5, false)
		p.fetched(time.Now(), 8, 10, 10, 0)
		p.failing(kafka.Unknown)
		clock.now = begun.Add(time.Hour)
		p.fetched(time.Now(), 8, 10, 10, 0)
		require.Zero(t, p.health(false, timeout, time.Time{}).StalledSince, "it gets its time")
	})
}

func TestPartitionHealthHasStateAndTime(t *testing.T) {
	begun := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	clock := &set{begun}
	p := newPartition(t.Context(), "orders", 0, -1)
	defer p.stop()
	p.clock, p.assignedAt = clock, begun
	tick := func() time.Time { clock.now = clock.now.Add(time.Second); return clock.now }
	h := now(p)
	require.Equal(t, partitionStarting, h.State)
	require.EqualValues(t, -1, h.Lag)
	require.Equal(t, begun, h.AssignedAt)

	p.begin(0, false)
	require.Equal(t, partitionFetching, now(p).State)
	require.Equal(t, partitionAccepting, p.health(true, time.Hour, time.Time{}).State, "no room")
	failed := tick()
	p.failing(kafka.Unknown)
	tick()
	p.failing(kafka.NotLeaderForPartition)
	h = now(p)
	require.Equal(t, partitionFailing, h.State)
	require.Equal(t, failed, h.ErrSince)
	require.Equal(t, kafka.NotLeaderForPartition, h.Err, "the last one")

	reported := tick()
	p.fetched(time.Now(), 4, 10, 10, 0)
	h = now(p)
	require.Equal(t, partitionAccepting, h.State)
	require.NoError(t, h.Err)
	require.Zero(t, h.ErrSince)
	require.Equal(t, reported, h.ToldAt)
	require.Equal(t, reported, h.BehindSince)
	require.EqualValues(t, 10, h.Lag)
	p.accept(4, tick())
	h = now(p)
	require.Equal(t, partitionFetching, h.State)
	require.Equal(t, clock.now, h.ProgressAt)
	require.Equal(t, reported, h.BehindSince)
	require.EqualValues(t, 6, h.Lag)

	require.False(t, p.stale(), "a fetch reported it")
	require.True(t, p.stale())
	asked := tick()
	p.refreshed(20, -1)
	h = now(p)
	require.EqualValues(t, 16, h.Lag)
	require.Equal(t, asked, h.ToldAt)
	tick()
	p.fetched(time.Now(), 20, 21, 21, 0)
	p.refreshed(20, 20)
	require.EqualValues(t, 21, now(p).HighWatermark, "a fetch that was answered meanwhile is newer")
	p.accept(21, tick())
	h = now(p)
	require.Zero(t, h.Lag)
	require.Zero(t, h.BehindSince)

	p.watermarkUnknown(kafka.NotLeaderForPartition)
	require.EqualValues(t, -1, now(p).Lag, "the broker cannot be asked, and may have more")
	p.refreshed(21, -1)
	require.Zero(t, now(p).Lag)
	tick()
	p.failing(kafka.NotLeaderForPartition)
	require.EqualValues(t, -1, now(p).Lag, "nor is it known since fetching fails")
	tick()
	p.stale()
	p.refreshed(21, -1)
	require.Zero(t, now(p).Lag, "until the broker answers otherwise")
	p.fetched(time.Now(), 21, 21, 21, 0)

	halted := tick()
	p.halt(recordHalt(kafka.Unknown, true))
	tick()
	p.halt(halt{reason: kafka.NotLeaderForPartition})
	h = now(p)
	require.Equal(t, partitionHalted, h.State)
	require.Equal(t, halted, h.HaltedAt)
	require.ErrorIs(t, h.Halted, kafka.Unknown, "a record's halt stays the reason")
	require.Equal(t, []string{"resume", "skip"}, h.Decisions)
}

func TestHealthListsABoundedNumberOfPartitions(t *testing.T) {
	h := Health{Partitions: make([]PartitionHealth, 10_000)}
	for i := range h.Partitions {
		h.Partitions[i] = PartitionHealth{Topic: "orders", Partition: i, Halted: errors.New("a bad record")}
	}
	text := h.Err().Error()
	require.Contains(t, text, "orders/19 ")
	require.NotContains(t, text, "orders/20 ")
	require.Contains(t, text, "9980 more partitions have problems")
	require.Less(t, len(text), 4<<10)
}

func TestLagIsTheSumOfPartitionsOrUnknown(t *testing.T) {
	early, late := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 1, 1, 12, 0, 1, 0, time.UTC)
	h := Health{Partitions: []PartitionHealth{{Lag: 2, BehindSince: late}, {Lag: 0}, {Lag: 3, BehindSince: early}}}
	lag, since := h.Lag()
	require.EqualValues(t, 5, lag)
	require.Equal(t, early, since)
	h.Partitions = append(h.Partitions, PartitionHealth{Lag: -1}, PartitionHealth{Lag: 7, BehindSince: late})
	lag, _ = h.Lag()
	require.EqualValues(t, -1, lag)
	lag, since = Health{State: StateRunning}.Lag()
	require.Zero(t, lag)
	require.Zero(t, since)
	lag, _ = Health{State: StateJoining}.Lag()
	require.EqualValues(t, -1, lag, "no member of the group")
}

// FuzzPartitionHealth checks that whatever happens to a partition in whatever order, its health is
// consistent, and that a partition that has caught up stays so (contract 6.5, 7.8).
func FuzzPartitionHealth(f *testing.F) {
	f.Add([]byte{0, 5, 1, 9, 2, 3, 3, 0, 4, 4, 5, 9, 6, 9, 7, 1})
	f.Add([]byte{0, 0, 6, 0, 1, 0, 5, 0, 2, 0, 7, 200, 8, 0})
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 200 {
			return // more of the same
		}
		const timeout = time.Minute
		clock := &set{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		p := newPartition(t.Context(), "orders", 0, -1)
		defer p.stop()
		p.clock, p.readCommitted, p.assignedAt = clock, true, clock.now
		begun, caughtUp := false, false
		for i := 0; i+1 < len(steps); i += 2 {
			n := int64(steps[i+1])
			h := p.health(false, timeout, time.Time{})
			switch steps[i] % 10 {
			case 0:
				if !begun {
					p.begin(n, false)
					begun = true
				}
			case 1:
				if begun {
					p.fetched(time.Now(), h.Next+n%8, h.Next+n, h.Next+n/2, 0)
				}
			case 2:
				p.accept(min(h.Accepted+n, h.Next), clock.now)
			case 3:
				p.failing(kafka.Unknown)
			case 4:
				p.commit(min(h.Committed+n, h.Accepted))
			case 5:
				p.refreshed(n, n-1)
			case 6:
				if h.CaughtUp == caughtUp && p.assignedWatermark < 0 {
					p.assigned(n)
				}
			case 7:
				clock.now = clock.now.Add(time.Duration(n) * time.Second)
			case 8:
				p.stale()
			case 9:
				p.watermarkUnknown(kafka.Unknown)
			}
			if n == 255 {
				p.halt(recordHalt(kafka.Unknown, true))
			}
			h = p.health(false, timeout, time.Time{})
			require.LessOrEqual(t, h.Committed, max(h.Accepted, -1))
			require.LessOrEqual(t, h.Accepted, h.Next)
			outdated := h.WatermarkErr != nil || h.Err != nil && h.ToldAt.Before(h.ErrSince)
			require.Equal(t, h.HighWatermark < 0 || h.Accepted < 0 || outdated, h.Lag < 0)
			require.Equal(t, h.Lag > 0, !h.BehindSince.IsZero() && !outdated)
			require.Equal(t, h.Halted != nil, h.State == partitionHalted)
			require.Equal(t, h.Err != nil, !h.ErrSince.IsZero())
			require.False(t, caughtUp && !h.CaughtUp, "it was caught up")
			caughtUp = h.CaughtUp
			if !h.StalledSince.IsZero() {
				require.True(t, h.Halted == nil && h.Err == nil && h.Lag != 0)
				require.GreaterOrEqual(t, clock.now.Sub(h.StalledSince), timeout)
				require.False(t, h.StalledSince.Before(h.ProgressAt))
			}
		}
	})
}
