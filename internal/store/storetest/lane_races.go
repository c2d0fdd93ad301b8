package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

var laneRaceTests = []test{
	{"no two claims of a lane are ever held at once, and none of its rows is forgotten", func(s *suite) {
		s.race(ruleOf("mail"), 3, 40)
	}},
	{"no lane is claimed twice where poisoned rows are skipped and retried", func(s *suite) {
		s.race(skipping(ruleOf("mail")), 3, 40)
	}},
	{"no lane is claimed twice among many short lanes", func(s *suite) {
		s.race(ruleOf("mail"), 60, 3)
	}},
	{"no lane is claimed twice while completed rows run again", func(s *suite) {
		s.raceOf(&laneRace{rule: ruleOf("mail"), reruns: 30}, 3, 20)
	}},
	{"no two runs of a lane are ever held at once, and none of its rows is forgotten", func(s *suite) {
		s.raceOf(&laneRace{rule: ruleOf("mail"), runs: true}, 3, 40)
	}},
	{"no two runs of a lane are ever held at once where poisoned rows are skipped and retried", func(s *suite) {
		s.raceOf(&laneRace{rule: skipping(ruleOf("mail")), runs: true}, 3, 40)
	}},
	{"the database refuses a second claimed row of a lane", func(s *suite) {
		s.accept(ordered("m1", "k", "mail"), ordered("m2", "k", "mail"), ordered("m3", "other", "mail"))
		require.Len(s, s.heads(noon, 5), 2)
		err := s.db.Exec(`UPDATE inbox_handler_statuses SET holds_lane = true WHERE message_id = 'm2'`).Error
		require.True(s, store.IsUniqueViolation(err), "%v", err)
	}},
	{"a retried row and a later one are not claimed at the same moment", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		rule := skipping(ruleOf("mail"))
		s.acceptLane("m1", "m2")
		s.poison(s.claimUnder(rule, noon, 1, "mail").Claims[0])
		// Two claims take different rows for the first one:
		//
		// 1. A claim finds that m2 is first and has written its claim, not committed.
		// 2. m1 is retried.
		// 3. To another claim m1 is first, and no row of the lane is claimed.
		release := s.holdSetting("holds_lane")
		one := s.claimInBackground(rule)
		s.waitForLock()
		s.retry("m1", "mail")
		two := s.claimInBackground(rule)
		s.waitForLocks(2)
		require.NoError(s, release())
		first, second := <-one, <-two
		require.NoError(s, first.err)
		require.NoError(s, second.err)
		require.Equal(s, []string{"m2/mail"}, claimed(first.got.Claims))
		require.Empty(s, second.got.Claims)
		s.complete(noon, first.got.Claims...)
		require.Equal(s, []string{"m1/mail"}, claimed(s.claimUnder(rule, noon, 5, "mail").Claims))
	}},
	{"a row that runs again and a later one are not claimed at the same moment", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		s.acceptLane("m1", "m2")
		s.complete(noon, s.heads(noon, 1)...)
		// As for a retried row, see above; but here no rule skips anything.
		release := s.holdSetting("holds_lane")
		one := s.claimInBackground(ruleOf("mail"))
		s.waitForLock()
		require.NotNil(s, s.rerun(s.status("m1", "mail"), noon))
		two := s.claimInBackground(ruleOf("mail"))
		s.waitForLocks(2)
		require.NoError(s, release())
		first, second := <-one, <-two
		require.NoError(s, first.err)
		require.NoError(s, second.err)
		require.Equal(s, []string{"m2/mail"}, claimed(first.got.Claims))
		require.Empty(s, second.got.Claims)
		s.complete(noon, first.got.Claims...)
		require.Equal(s, []string{"m1/mail"}, claimed(s.heads(noon, 5)))
	}},
	{"a row marked while its predecessor ends is released by the claim that marked it", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		s.acceptLane("m1", "m2", "m3")
		head := s.heads(noon, 1)[0]
		// The mark and the end of the row before it miss each other:
		//
		// 1. A claim judges m2 and m3 by a snapshot in which m1 is pending. It writes the marks and has
		//     not committed them.
		// 2. m1 ends.
		// 3. The caller that ended m1 advances the lane and sees no mark.
		release := s.holdSetting("is_waiting")
		marking := s.claimInBackground(ruleOf("mail"))
		s.waitForLock()
		s.complete(noon, head)
		s.advance(ruleOf("mail"), head)
		require.NoError(s, release())
		done := <-marking
		require.NoError(s, done.err)
		require.Empty(s, done.got.Claims)
		require.Equal(s, []string{"mail"}, done.got.More)
		require.Equal(s, []string{"m3"}, s.waiting())
		require.Equal(s, []string{"m2/mail"}, claimed(s.heads(noon, 1)))
	}},
	{"a row marked while its predecessor's transaction is open is released after the commit", func(s *suite) {
		if s.onSQLite("SQLite's one writer rules this out") {
			return
		}
		s.acceptLane("m1", "m2", "m3")
		head := s.heads(noon, 1)[0]
		tx := s.begin()
		require.True(s, s.completeTx(tx, head))
		require.Empty(s, s.heads(noon, 1), "m1 has not ended yet, and nobody waits for its lock")
		require.Equal(s, []string{"m2", "m3"}, s.waiting())
		require.NoError(s, tx.Commit().Error)
		require.Equal(s, []string{"mail"}, s.advance(ruleOf("mail"), head))
		require.Equal(s, []string{"m2/mail"}, claimed(s.heads(noon, 1)))
	}},
}

type outcome struct {
	got store.Claimed
	err error
}

// claimInBackground claims one "mail" on another connection.
func (s *suite) claimInBackground(rule store.LaneRule) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		got, err := s.store.Claim(s.ctx, store.ClaimRequest{Now: noon,
			Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: 1, Lanes: &rule}}})
		done <- outcome{got, err}
	}()
	return done
}

// holdSetting stops every statement that sets this column of a status until release is called.
func (s *suite) holdSetting(column string) (release func() error) {
	s.Helper()
	return s.hold(Event{Statement: "UPDATE", Table: "inbox_handler_statuses", Sets: column})
}

// race lets claimers claim, fail, release, poison, retry and complete until every row of every lane
// has completed. Claimers, and those that end claims, advance the lanes. CheckLanes does not run,
// so a lane that is forgotten stays blocked.
func (s *suite) race(rule store.LaneRule, lanes, rows int) {
	s.Helper()
	s.raceOf(&laneRace{rule: rule}, lanes, rows)
}

// raceOf is race, in which r.reruns rows run once more after they have completed. With r.runs claimers also claim what
// follows their claims.
func (s *suite) raceOf(r *laneRace, lanes, rows int) {
	s.Helper()
	claimers := 8
	switch {
	case !s.isServer(): // one of them writes at a time
		claimers, rows = 3, (rows+3)/4
	case raceDetector && !s.isPostgres(): // SQLite in pure Go is slow with it
		rows = (rows + 3) / 4
	}
	for i := range rows {
		var batch []store.NewMessage
		for lane := range lanes {
			batch = append(batch, ordered(fmt.Sprintf("%02d-%03d", lane, i), fmt.Sprint(lane), "mail"))
		}
		s.accept(batch...)
	}
	r.suite, r.worker, r.claimers, r.left = s, s.worker("mail"), claimers, lanes*rows+r.reruns
	r.running, r.last, r.unordered = map[store.Lane]string{}, map[store.Lane]string{}, r.reruns > 0
	r.moved.L = &r.mu
	s.noErrors(racetest.Together(claimers, func(int) error {
		err := r.claimer()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.over = r.over || err != nil
		r.moved.Broadcast()
		return err
	}))
	require.Zero(s, r.left)
	require.Empty(s, s.waiting())
}

type laneRace struct {
	*suite
	rule     store.LaneRule
	runs     bool
	worker   string
	claimers int

	mu      sync.Mutex
	moved   sync.Cond // ends, left or over has changed
	reruns  int       // how many completed rows are still to be run again
	left    int
	over    bool // a claimer failed
	ends    int  // claims that were ended and whose lanes were advanced
	idle    int  // claimers that have found nothing since the last end
	running map[store.Lane]string
	last    map[store.Lane]string // the last message that each lane completed
	// unordered means that completed rows run again, after later ones.
	unordered bool
}

func (r *laneRace) claimer() error {
	for last := false; ; {
		r.mu.Lock()
		ends, done := r.ends, r.over || r.left == 0
		r.mu.Unlock()
		if done {
			return nil
		}
		limit := 1 + rand.N(3)
		got, err := r.store.Claim(r.ctx, store.ClaimRequest{Now: noon,
			Limits: []store.KeyLimit{{HandlerKey: "mail", Limit: limit, Lanes: &r.rule}}})
		if err = errors.Join(err, got.LanesErr); err != nil {
			return err
		}
		for _, claim := range got.Claims {
			if err := r.begin(claim); err != nil {
				return err
			}
		}
		for claims := got.Claims; len(claims) > 0; {
			next, err := r.run(claims[0])
			if err != nil {
				return err
			}
			claims = append(claims[1:], next...)
		}
		switch {
		case len(got.Claims) > 0 || len(got.More) > 0:
			last = false
		case last:
			return fmt.Errorf("rows are forgotten: %d left, waiting are %v", r.left, r.waiting())
		default:
			last = r.await(ends)
		}
	}
}

// await waits for the next end of a claim. It reports true if no other claimer could still end one:
// what is left must then be free to be claimed.
func (r *laneRace) await(ends int) (alone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle++
	defer func() { r.idle-- }()
	for r.ends == ends && r.left > 0 && !r.over {
		if r.idle == r.claimers {
			return true
		}
		r.moved.Wait()
	}
	return false
}

func (r *laneRace) begin(claim store.Claim) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other := r.running[*claim.Lane]; other != "" {
		return fmt.Errorf("message %s is claimed while %s is", claim.MessageID, other)
	}
	if last := r.last[*claim.Lane]; !r.rule.SkipPoisoned && !r.unordered && claim.MessageID <= last {
		return fmt.Errorf("message %s is claimed after %s", claim.MessageID, last)
	}
	r.running[*claim.Lane] = claim.MessageID
	return nil
}

// again runs a completed row again if some are still to be, as an operator does, while the lane goes on.
func (r *laneRace) again(claim store.Claim) error {
	r.mu.Lock()
	again := r.reruns > 0
	if again {
		r.reruns--
	}
	r.mu.Unlock()
	if !again {
		return nil
	}
	if rand.N(2) == 0 { // the next row of the lane may be claimed already
		if _, err := r.store.AdvanceLanes(r.ctx, []store.LaneRequest{r.rule.Request(*claim.Lane)}, noon); err != nil {
			return err
		}
	}
	row := models.HandlerStatus{MessageNumber: claim.MessageNumber, HandlerKey: claim.HandlerKey,
		Version: models.Version(claim.Version + 1)}
	opened, err := r.tryRerun(row, noon)
	if err == nil && opened == nil {
		err = fmt.Errorf("message %s does not run again", claim.MessageID)
	}
	return err
}

// run ends a claim, and those that follow it in its lane if it claims these: in their order up to the first that does
// not complete, and the rest is given back. It returns the next claim if it has one.
func (r *laneRace) run(head store.Claim) (next []store.Claim, err error) {
	run := []store.Claim{head}
	if r.runs && rand.N(3) > 0 {
		claims, err := r.store.ClaimRuns(r.ctx, r.worker, runRequests(r.rule, 1+rand.N(4), 0, head), noon)
		if err != nil {
			return nil, err
		}
		for _, claim := range claims {
			if claim.MessageID <= run[len(run)-1].MessageID && !r.rule.SkipPoisoned {
				return nil, fmt.Errorf("message %s is claimed in one run after %s", claim.MessageID, run[len(run)-1].MessageID)
			}
			run = append(run, claim)
		}
	}
	for i, claim := range run {
		completed, claims, err := r.end(claim)
		if err != nil {
			return nil, err
		}
		next = append(next, claims...)
		if completed {
			continue
		}
		for _, claim := range run[i+1:] {
			claims, err := r.giveBack(claim)
			if err != nil {
				return nil, err
			}
			next = append(next, claims...)
		}
		break
	}
	return next, nil
}

// end ends a claim in a random way and advances its lane. It returns the next claim if it has one.
func (r *laneRace) end(claim store.Claim) (completed bool, next []store.Claim, err error) {
	var applied []bool
	r.mu.Lock()
	delete(r.running, *claim.Lane) // all of a run are handled before the first ends
	r.mu.Unlock()
	switch back := settlement(claim); rand.N(4) {
	case 0: // failed or released, due again
		applied, err = r.store.Settle(r.ctx, []store.Settlement{back}, store.AwaitLocked)
	case 1: // poisoned, and retried by an operator a moment later
		back.Poisoned = true
		applied, err = r.store.Settle(r.ctx, []store.Settlement{back}, store.AwaitLocked)
		if err == nil {
			if _, err = r.store.AdvanceLanes(r.ctx, []store.LaneRequest{r.rule.Request(*claim.Lane)}, noon); err != nil {
				return false, nil, err
			}
			err = r.db.WithContext(r.ctx).Exec(`UPDATE inbox_handler_statuses SET is_poisoned = false, version = version + 1 WHERE id = ?`, claim.StatusID).Error
		}
	default:
		r.mu.Lock()
		r.last[*claim.Lane] = claim.MessageID
		r.mu.Unlock()
		completed = true
		applied, err = r.store.Complete(r.ctx, []store.Completion{completion(claim)}, noon, store.AwaitLocked)
	}
	if err != nil {
		return false, nil, err
	}
	if slices.Contains(applied, false) {
		return false, nil, fmt.Errorf("the claim of message %s was lost", claim.MessageID)
	}
	if completed {
		if err := r.again(claim); err != nil {
			return false, nil, err
		}
	}
	next, err = r.next(claim, completed)
	return completed, next, err
}

// giveBack releases a claim whose turn has not come, and advances its lane.
func (r *laneRace) giveBack(claim store.Claim) ([]store.Claim, error) {
	applied, err := r.store.Settle(r.ctx, []store.Settlement{settlement(claim)}, store.AwaitLocked)
	switch {
	case err != nil:
		return nil, err
	case slices.Contains(applied, false):
		return nil, fmt.Errorf("the claim of message %s was lost", claim.MessageID)
	}
	return r.next(claim, false)
}

// next advances the lane of a claim that has ended, and returns the lane's next claim if it makes one.
func (r *laneRace) next(claim store.Claim, completed bool) ([]store.Claim, error) {
	request := r.rule.Request(*claim.Lane)
	if rand.N(2) == 0 {
		request.ClaimKey = claim.HandlerKey
	}
	got, err := r.store.ClaimNext(r.ctx, r.worker, []store.LaneRequest{request}, noon)
	if err != nil {
		return nil, err
	}
	for _, claim := range got.Claims {
		if err := r.begin(claim); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends++
	if completed {
		r.left--
	}
	r.moved.Broadcast()
	return got.Claims, nil
}
