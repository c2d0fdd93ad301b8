package dashboard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/ops"
)

const (
	// jobsAtOnce limits the concurrent jobs, so that operators do not load the database more than the inbox does.
	jobsAtOnce = 4
	// jobsFor is how long a job is remembered after its end. It is also the longest time that a job may take.
	jobsFor = time.Hour
)

// jobs are the bulk actions, backfills and cleanups of this process. The dashboard's Stop ends their goroutines.
type jobs struct {
	mu     sync.Mutex
	closed bool
	all    map[string]*job
}

// job is one bulk action, backfill or cleanup.
type job struct {
	action   string // "retry", "discard", "accept", "backfill" or "cleanup"
	actor    string
	expected int64 // the dry run's count
	back     string
	began    time.Time
	end      context.CancelFunc
	done     chan struct{} // closed when it has ended

	mu        *sync.Mutex // that of jobs; it guards the rest
	result    ops.BulkResult
	deleted   handler.Deleted
	ended     time.Time // zero while under way
	cancelled bool      // cancelled by a user or by Stop
	err       error
}

func (j *job) progress(result ops.BulkResult) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.result = result
}

func (j *job) cleaned(deleted handler.Deleted) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.deleted = deleted
}

// start runs a job in a new goroutine, independent of the request that started it. It returns false if too many jobs
// are running or the dashboard was stopped.
func (js *jobs) start(j *job, clock clock.Clock, run func(context.Context, *job) error) (id string, ok bool) {
	js.mu.Lock()
	defer js.mu.Unlock()
	underWay := 0
	for id, j := range js.all {
		if j.ended.IsZero() {
			underWay++
		} else if clock.Now().Sub(j.ended) > jobsFor {
			delete(js.all, id)
		}
	}
	if js.closed || underWay >= jobsAtOnce {
		return "", false
	}
	ctx, cancel := context.WithTimeout(context.Background(), jobsFor)
	j.mu, j.end, j.done = &js.mu, cancel, make(chan struct{})
	id = rand.Text()
	if js.all == nil {
		js.all = map[string]*job{}
	}
	js.all[id] = j
	go func() {
		defer close(j.done)
		defer cancel()
		err := routine.Protect("the action", func() error { return run(ctx, j) })
		j.mu.Lock()
		defer j.mu.Unlock()
		j.err, j.ended = err, clock.Now()
	}()
	return id, true
}

func (js *jobs) cancel(id string) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if j := js.all[id]; j != nil {
		j.cancel()
	}
}

// cancel cancels the job. The caller holds the lock.
func (j *job) cancel() {
	j.cancelled = true
	j.end()
}

// close cancels all jobs and refuses new ones until reopen.
func (js *jobs) close() {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.closed = true
	for _, j := range js.all {
		j.cancel()
	}
}

func (js *jobs) reopen() {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.closed = false
}

// wait returns when all jobs have ended, or with ctx's error.
func (js *jobs) wait(ctx context.Context) error {
	js.mu.Lock()
	var running []chan struct{}
	for _, j := range js.all {
		running = append(running, j.done)
	}
	js.mu.Unlock()
	for _, done := range running {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// jobView is a job as pages show it.
type jobView struct {
	ID, Title, Actor, Back string
	Action                 string
	Took                   time.Duration
	Began                  time.Time
	Ended, Cancelled       bool
	Result                 ops.BulkResult
	Expected               int64
	// Percent is how much of the dry run's count is done.
	Percent int64
	Deleted []field
	Problem *problemView
}

type problemView struct{ Title, Text string }

func (js *jobs) find(id string, now time.Time) (jobView, bool) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j, ok := js.all[id]
	if !ok {
		return jobView{}, false
	}
	return j.view(id, now), true
}

// running lists the running jobs, the latest first.
func (js *jobs) running(now time.Time) (all []jobView) {
	js.mu.Lock()
	defer js.mu.Unlock()
	for id, j := range js.all {
		if v := j.view(id, now); !v.Ended {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b jobView) int { return cmp.Or(b.Began.Compare(a.Began), cmp.Compare(a.ID, b.ID)) })
	return all
}

// view returns the job as pages show it. The caller holds the lock.
func (j *job) view(id string, now time.Time) jobView {
	v := jobView{ID: id, Actor: j.actor, Back: j.back, Action: j.action, Began: j.began, Took: now.Sub(j.began),
		Result: j.result, Expected: j.expected, Cancelled: j.cancelled}
	v.Title = map[string]string{"retry": "Retry all that match", "discard": "Discard all that match",
		"accept": "Accept all that match again", "backfill": "Backfill a handler", "cleanup": "Cleanup"}[j.action]
	if j.expected > 0 {
		v.Percent = min(100, (j.result.Done+j.result.StillBad+j.result.Skipped)*100/j.expected)
	}
	if j.ended.IsZero() {
		return v
	}
	v.Ended, v.Took = true, j.ended.Sub(j.began)
	switch {
	case j.err == nil:
		v.Percent = 100
	case j.cancelled && errors.Is(j.err, context.Canceled):
		v.Problem = &problemView{"Stopped early", "It was stopped. Changes made until then are kept."}
	default:
		p := problemOf(j.err)
		v.Problem = &problemView{p.title, p.text}
	}
	if j.action == "cleanup" {
		d := j.deleted
		v.Deleted = []field{{"Messages", number(d.Messages)}, {"Statuses", number(d.Statuses)},
			{"Unarchived", number(d.Unarchived)}, {"Markers", number(d.Markers)}, {"Audit rows", number(d.Audit)},
			{"Rejected messages", number(d.Rejected)}, {"Workers", number(d.Workers)}, {"Leases", number(d.Leases)}}
	}
	return v
}
