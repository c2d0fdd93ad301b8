package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// ledger records the results that all callers got: which version of which status they changed, and how
// much was added and deleted.
type ledger struct {
	sync.Mutex
	// transitions are keyed by the version that was changed. The value is true for a claim.
	transitions map[version]bool
	// open holds changes that failed with an error after which it is unknown whether they took
	// place.
	open                             map[version]bool
	known                            []store.Ref
	added, inserted                  int64
	deletedStatuses, deletedMessages int64
	collisions                       int
	// unadvanced means that a caller could not advance its lanes, as if it had died.
	unadvanced bool
}

// transition records that a caller changed a status at a version. Two callers that report the same
// version have changed it twice.
func (l *ledger) transition(statusID string, from int64, claim bool) error {
	l.Lock()
	defer l.Unlock()
	at := version{statusID, from}
	if _, changed := l.transitions[at]; changed {
		return fmt.Errorf("status %s was changed twice at version %d", statusID, from)
	}
	l.transitions[at] = claim
	return nil
}

// answered records the answer to a batch of changes.
func (l *ledger) answered(changes []version, applied []bool, err error) error {
	if err != nil {
		l.Lock()
		defer l.Unlock()
		for _, change := range changes {
			l.open[change] = true
		}
		return err
	}
	for i, change := range changes {
		if applied[i] {
			err = errors.Join(err, l.transition(change.statusID, change.version, false))
		}
	}
	return err
}

func (l *ledger) learn(refs ...store.Ref) {
	l.Lock()
	defer l.Unlock()
	l.known = append(l.known, refs...)
}

// some returns some of the statuses that callers ever learned of, newer ones more often.
func (l *ledger) some(random *rand.Rand) []store.Ref {
	l.Lock()
	defer l.Unlock()
	var refs []store.Ref
	taken := map[string]bool{}
	for range 1 + random.IntN(4) {
		if len(l.known) == 0 {
			break
		}
		back := random.IntN(min(len(l.known), 5+random.IntN(60)))
		if ref := l.known[len(l.known)-1-back]; !taken[ref.StatusID] {
			taken[ref.StatusID] = true
			refs = append(refs, ref)
		}
	}
	return refs
}

// check compares the tables with the results that the callers got.
func (l *ledger) check(s *suite) {
	s.Helper()
	if l.unadvanced {
		for _, rule := range []store.LaneRule{*rules["beta"], *renamed} {
			next, _, err := s.store.CheckLanes(s.ctx, rule, nil, 1000, noon.Add(time.Hour))
			require.NoError(s, err)
			require.Nil(s, next)
		}
	}
	rows := storedStatuses(s, s.db.WithContext(s.ctx))
	checkRows(s, rows)
	for _, row := range rows {
		for from := int64(1); from < int64(row.Version); from++ {
			at := version{row.ID, from}
			claim, changed := l.transitions[at]
			// No caller gets a result for marking a row as waiting or of releasing it.
			require.True(s, changed || l.open[at] || row.LaneKey != nil, "%s: no caller got the change of version %d",
				inWords(row), from)
			require.False(s, claim && l.transitions[version{row.ID, from - 1}], "%s: claimed while claimed, at version %d",
				inWords(row), from)
		}
		require.NotContains(s, l.transitions, version{row.ID, int64(row.Version)}, "%s: a reported change is missing",
			inWords(row))
	}
	checkLanes(s, rows, nil)
	require.EqualValues(s, l.added-l.deletedStatuses, len(rows), "statuses added and not deleted")
	require.EqualValues(s, l.inserted-l.deletedMessages, len(s.messageIDs()), "messages inserted and not deleted")
}

// watch compares each read of the statuses with the one before.
func (s *suite) watch(stop <-chan struct{}) error {
	var before map[string]models.HandlerStatus
	for {
		failed := &failure{}
		after := map[string]models.HandlerStatus{}
		rows := storedStatuses(failed, s.db.WithContext(s.ctx))
		checkRows(failed, rows)
		for _, row := range rows {
			after[row.ID] = row
		}
		checkChanges(failed, before, after)
		if failed.err != nil {
			return failed.err
		}
		before = after
		select {
		case <-stop:
			return nil
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// checkChanges is checkSteps for rows of which several steps were missed: a row may have been
// completed and deleted meanwhile.
func checkChanges(t require.TestingT, before, after map[string]models.HandlerStatus) {
	stayed := map[string]models.HandlerStatus{}
	for id, row := range before {
		if _, there := after[id]; there {
			stayed[id] = row
		}
	}
	checkSteps(t, stayed, after, false)
}

// failure collects test failures, for goroutines that must not end the test.
type failure struct{ err error }

func (f *failure) Errorf(format string, args ...any) {
	f.err = errors.Join(f.err, fmt.Errorf(format, args...))
}
func (f *failure) FailNow() {}

// drain recovers what is claimed and completes what is left, without other callers. Whatever
// happened before, only poisoned statuses may stay.
func (s *suite) drain(l *ledger) {
	s.Helper()
	later := noon.Add(time.Hour)
	claims, err := openClaims(s.ctx, s.store)
	require.NoError(s, err)
	var refs []store.Ref
	for _, claim := range claims {
		refs = append(refs, claim.Ref)
	}
	for _, ref := range refs {
		s.settle(store.Settlement{StatusID: ref.StatusID, Version: ref.Version})
		require.NoError(s, l.transition(ref.StatusID, ref.Version, false))
	}
	s.advanceAll(refs)
	for rounds := 0; ; rounds++ {
		require.Less(s, rounds, 1000, "the rows of lanes come one after the other, but without end")
		request := store.ClaimRequest{Now: later}
		for _, key := range handlerKeys {
			request.Limits = append(request.Limits, store.KeyLimit{HandlerKey: key, Limit: 100, Lanes: rules[key]})
		}
		claimed, err := s.store.Claim(s.ctx, request)
		require.NoError(s, err)
		if len(claimed.Claims) == 0 {
			break
		}
		refs = refs[:0]
		for _, claim := range claimed.Claims {
			require.NoError(s, l.transition(claim.StatusID, claim.Version-1, true))
			require.NoError(s, l.transition(claim.StatusID, claim.Version, false))
			refs = append(refs, claim.Ref)
		}
		s.complete(later, claimed.Claims...)
		s.advanceAll(refs)
	}
	parked := map[store.Lane]bool{}
	for _, row := range s.statuses() {
		if row.IsPoisoned && row.LaneKey != nil && !rules[row.HandlerKey].SkipPoisoned {
			parked[familyLane(row)] = true
		}
		left := row.CompletedAt == nil && !row.IsPoisoned && !(row.LaneKey != nil && parked[familyLane(row)])
		require.False(s, left, "%s: a status that nobody can reach", inWords(row))
	}
}

func (s *suite) advanceAll(refs []store.Ref) {
	s.Helper()
	var requests []store.LaneRequest
	for _, ref := range refs {
		if ref.Lane != nil {
			requests = append(requests, rules[ref.HandlerKey].Request(*ref.Lane))
		}
	}
	_, err := s.store.AdvanceLanes(s.ctx, requests, noon.Add(time.Hour))
	require.NoError(s, err)
}
