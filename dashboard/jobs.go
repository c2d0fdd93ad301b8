package dashboard

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/envelope"
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

// jobs are what this process does for long in operators' names, such as bulk actions, backfills and cleanups. The
// dashboard's Stop ends their goroutines.
type jobs struct {
	mu     sync.Mutex
	closed bool
	all    map[string]*job
}

// job is one of them.
type job struct {
	end  context.CancelFunc
	done chan struct{} // closed when it has ended

	mu *sync.Mutex // that of jobs; it guards the rest
	jobView
	ended time.Time // zero while under way
	err   error
}

func (j *job) progress(result ops.BulkResult) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Result = result
}

func (j *job) cleaned(deleted handler.Deleted) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Deleted = deleted
}

// start runs a job in a new goroutine, independent of the request that started it. It returns false if too many jobs
// are running or the dashboard was stopped.
func (js *jobs) start(v jobView, clock clock.Clock, run func(context.Context, *job) error) bool {
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
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), jobsFor)
	j := &job{end: cancel, done: make(chan struct{}), mu: &js.mu, jobView: v}
	if js.all == nil {
		js.all = map[string]*job{}
	}
	js.all[j.ID] = j
	go func() {
		defer close(j.done)
		defer cancel()
		err := routine.Protect("the action", func() error { return run(ctx, j) })
		j.mu.Lock()
		defer j.mu.Unlock()
		j.err, j.ended = err, clock.Now()
	}()
	return true
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
	j.Cancelled = true
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
	ID, Actor, Back string
	Action          string // "retry", "discard", "accept", "backfill", "read-again" or "cleanup"
	Began           time.Time
	Expected        int64 // the dry run's count
	Result          ops.BulkResult
	Deleted         handler.Deleted
	Again           envelope.ReadAgain // of "read-again", whose result is Reread
	Reread          envelope.ReadAgainResult
	Cancelled       bool // by a user or by Stop

	// The rest is set by view. Percent is how much of the dry run's count is done.
	Title   string
	Ended   bool
	Took    time.Duration
	Percent int64
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
	return j.view(now), true
}

// running lists the running jobs, the latest first.
func (js *jobs) running(now time.Time) (all []jobView) {
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, j := range js.all {
		if v := j.view(now); !v.Ended {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b jobView) int { return cmp.Or(b.Began.Compare(a.Began), cmp.Compare(a.ID, b.ID)) })
	return all
}

// view returns the job as pages show it. The caller holds the lock.
func (j *job) view(now time.Time) jobView {
	v := j.jobView
	v.Took = now.Sub(v.Began)
	v.Title = map[string]string{"retry": "Retry all that match", "discard": "Discard all that match",
		"accept": "Accept all that match again", "backfill": "Backfill a handler", "read-again": "Read a topic again",
		"cleanup": "Cleanup"}[v.Action]
	if v.Expected > 0 {
		v.Percent = min(100, (v.Result.Done+v.Result.StillBad+v.Result.Skipped)*100/v.Expected)
	}
	if j.ended.IsZero() {
		return v
	}
	v.Ended, v.Took = true, j.ended.Sub(v.Began)
	switch {
	case j.err == nil:
		v.Percent = 100
	case v.Cancelled && errors.Is(j.err, context.Canceled):
		v.Problem = &problemView{"Stopped early", "It was stopped. Changes made until then are kept."}
	default:
		p := problemOf(j.err)
		v.Problem = &problemView{p.title, p.text}
	}
	return v
}
