package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func sorted(texts []string) []string { return slices.Sorted(slices.Values(texts)) }

func TestOverviewCountsByHandler(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "1", "2")
		r.fail("ship", "1", handler.RetryAfter(time.Hour, errors.New("boom")))
		r.accept("1", "2")
		r.process()
		r.accept("3")
		r.accept("4")
		r.clock.Advance(10 * time.Minute)
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = '3' AND handler_key = 'mail'`)
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET is_waiting = true WHERE message_id = '4' AND handler_key = 'ship'`)
		require.NoError(t, r.ops.Pause(t.Context(), ada, "alone"))
		worker := uuid.NewString()
		st := inboxtest.Store(t, r.d.DB)
		require.NoError(t, st.Heartbeat(t.Context(), store.Worker{ID: worker, Host: "h", PID: 7,
			HandlerKeys: []string{"mail", "idle"}}, r.clock.Now()))
		require.NoError(t, st.Heartbeat(t.Context(), store.Worker{ID: uuid.NewString(), Host: "h",
			HandlerKeys: []string{"stopped"}}, r.clock.Now()))
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_workers SET stopped_at = ? WHERE host = 'h' AND id <> ?`,
			r.clock.Now().Add(time.Second), worker)
		r.reject(1, "bad")

		overview, err := r.ops.Overview(t.Context())
		require.NoError(t, err)
		r.clock.Advance(-time.Second) // reject's
		require.Equal(t, "test", overview.Inbox)
		require.Equal(t, ops.Count{N: 1}, overview.Rejected)
		require.Zero(t, overview.Gaps)
		require.Equal(t, 1, overview.WorkersAlive)
		for i := range overview.Handlers {
			overview.Handlers[i].OldestDueAge = overview.Handlers[i].OldestDueAge.Truncate(10 * time.Second)
		}
		n := func(n int64) ops.Count { return ops.Count{N: n} }
		require.Equal(t, []ops.HandlerOverview{
			{HandlerKey: "alone", Paused: true, Obstacle: "paused; no living worker lists it"},
			{HandlerKey: "idle", Registered: true, Workers: 1},
			{HandlerKey: "mail", Registered: true, Workers: 1, Pending: n(1), Due: n(1), OldestDueAge: 10 * time.Minute, Processing: n(1),
				Poisoned: n(2)},
			{HandlerKey: "ship", StoredOnly: true, Obstacle: "no living worker lists it", Pending: n(3), Due: n(1), OldestDueAge: 10 * time.Minute,
				Waiting: n(1)},
		}, overview.Handlers)

		handlers, err := r.ops.Handlers(t.Context())
		require.NoError(t, err)
		require.Equal(t, []ops.Handler{{HandlerKey: "alone", Paused: true, Obstacle: "paused; no living worker lists it"},
			{HandlerKey: "idle", Registered: true, Workers: 1},
			{HandlerKey: "mail", Registered: true, Workers: 1},
			{HandlerKey: "ship", StoredOnly: true, Obstacle: "no living worker lists it"}}, handlers)
		workers, err := r.ops.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 2)
		alive := slices.IndexFunc(workers, func(w ops.Worker) bool { return w.ID == worker })
		require.True(t, workers[alive].Alive)
		require.Equal(t, []any{"h", 7, []string{"idle", "mail"}},
			[]any{workers[alive].Host, workers[alive].PID, workers[alive].HandlerKeys})
		require.True(t, workers[1-alive].Stopped)
		require.False(t, workers[1-alive].Alive)
	})
}

func TestLeasesReportWhenTheyExpire(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		owner := uuid.NewString()
		held, err := inboxtest.Store(t, r.d.DB).AcquireLease(t.Context(), "processor", owner, time.Hour, r.clock.Now())
		require.NoError(t, err)
		require.True(t, held)
		leases, err := r.ops.Leases(t.Context())
		require.NoError(t, err)
		require.Len(t, leases, 1)
		require.Equal(t, []string{"processor", owner}, []string{leases[0].Name, leases[0].OwnerID})
		require.InDelta(t, time.Hour.Seconds(), leases[0].ExpiresIn.Seconds(), 60)
	})
}

// TestFailuresAreGroupedByFingerprint proves contract 11.2.
func TestFailuresAreGroupedByFingerprint(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", `order 17 "a" not found`, "1")
		r.poison("mail", `order 4711 "b" not found`, "2", "3")
		r.fail("ship", "2", handler.RetryAfter(time.Hour, errors.New("dial tcp 10.0.0.1:80: refused")))
		r.fail("ship", "3", handler.RetryAfter(time.Hour, errors.New("dial tcp 10.0.0.2:81: refused")))
		for _, id := range []string{"1", "2", "3", "4"} {
			r.accept(id)
		}
		r.process()
		failures, err := r.ops.Failures(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.False(t, failures.Capped)
		require.Equal(t, 5, failures.Scanned)
		require.Len(t, failures.Groups, 2)
		mail, ship := failures.Groups[0], failures.Groups[1]
		require.Equal(t, []any{"mail", `poison: order # "#" not found`, int64(3), int64(0), "3"},
			[]any{mail.HandlerKey, mail.Error, mail.Poisoned, mail.Failing, mail.Sample.MessageID})
		require.True(t, inboxtest.Noon.Add(time.Second).Equal(mail.FirstSeen))
		require.True(t, inboxtest.Noon.Add(3*time.Second).Equal(mail.LastSeen))
		require.Equal(t, []any{"ship", int64(0), int64(2)}, []any{ship.HandlerKey, ship.Poisoned, ship.Failing})
		require.Contains(t, ship.Error, "dial tcp #: refused")
		require.Equal(t, []string{"ship/3", "ship/2"},
			r.list(ops.Filter{Fingerprint: ship.Fingerprint, States: []ops.State{ops.StateFailing}}, 10)[:2])

		for _, each := range []struct {
			filter ops.Filter
			keys   []string
		}{
			{ops.Filter{States: []ops.State{ops.StateFailing}}, []string{"ship"}},
			{ops.Filter{States: []ops.State{ops.StatePoisoned}}, []string{"mail"}},
			{ops.Filter{HandlerKeys: []string{"ship"}}, []string{"ship"}},
			{ops.Filter{ErrorText: "DIAL"}, []string{"ship"}}, {ops.Filter{Type: "t"}, []string{"mail", "ship"}},
			{ops.Filter{Fingerprint: ship.Fingerprint}, []string{"ship"}}, {ops.Filter{Fingerprint: "none"}, nil},
			{ops.Filter{To: inboxtest.Noon.Add(2 * time.Second)}, []string{"mail"}}, {ops.Filter{Type: "none"}, nil},
		} {
			failures, err := r.ops.Failures(t.Context(), each.filter)
			require.NoError(t, err)
			var keys []string
			for _, g := range failures.Groups {
				keys = append(keys, g.HandlerKey)
			}
			require.Equal(t, each.keys, keys)
		}
		// After a retry it is pending, but not failing.
		require.NoError(t, r.ops.Retry(t.Context(), ada, r.ref("mail", "1")))
		failures, err = r.ops.Failures(t.Context(), ops.Filter{HandlerKeys: []string{"mail"}})
		require.NoError(t, err)
		require.EqualValues(t, 2, failures.Groups[0].Poisoned)
		require.Zero(t, failures.Groups[0].Failing)
	})
}

// TestPauseAndResumeApplyImmediatelyInTheSameProcess proves contract 5.13, 11.1.
func TestPauseAndResumeApplyImmediatelyInTheSameProcess(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ran := make(chan string, 10)
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("now", func(_ context.Context, m inboxtest.Bytes) error {
			ran <- m.ID
			return nil
		}, handler.LegacyKeys("before"))))
		o, err := ib.Ops()
		require.NoError(t, err)
		inboxtest.Process(t, ib) // reads what is paused, not to be read again for a heartbeat
		require.NoError(t, o.Pause(t.Context(), ada, "before"), "by a legacy key as well")
		require.NoError(t, o.Pause(t.Context(), ada, "now"), "twice is once")
		inboxtest.Accept(t, ib, "1")
		require.Zero(t, inboxtest.Process(t, ib).Picked)
		require.NoError(t, o.Resume(t.Context(), ada, "now"))
		require.Equal(t, 1, inboxtest.Process(t, ib).Picked)

		require.ErrorIs(t, o.Pause(t.Context(), ada, "none"), ops.ErrNotFound)
		require.ErrorIs(t, o.Pause(t.Context(), ada, ""), ops.ErrBadInput)
		page, err := o.Audit(t.Context(), ops.AuditFilter{Action: ops.ActionPause}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 2)
		require.Equal(t, "handler now", page.Items[0].Target)
	})
}

// TestPauseCoversAllKeysOfARenamedHandler proves contract 5.13: workers of a program from before a
// rename obey, too.
func TestPauseCoversAllKeysOfARenamedHandler(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		renamed := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("now", inboxtest.Nothing,
			handler.LegacyKeys("before"))))
		old := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("before", inboxtest.Nothing)))
		o, err := renamed.Ops()
		require.NoError(t, err)
		inboxtest.Accept(t, old, "1")
		for name, each := range map[string]struct{ pause, resume func() error }{
			"an operator": {func() error { return o.Pause(t.Context(), ada, "now") }, func() error {
				return o.Resume(t.Context(), ada, "now")
			}},
			"the application": {func() error { return renamed.Pause(t.Context(), "now") }, func() error {
				return renamed.Resume(t.Context(), "now")
			}},
		} {
			require.NoError(t, each.pause(), name)
			require.Zero(t, inboxtest.Process(t, old).Picked, name)
			require.NoError(t, each.resume(), name)
		}
		require.Equal(t, 1, inboxtest.Process(t, old).Picked)
		require.ErrorIs(t, o.Resume(t.Context(), ada, "now"), ops.ErrNotPaused)
		page, err := o.Audit(t.Context(), ops.AuditFilter{}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 2, "nothing done is nothing to note")
	})
}

// TestOverviewCountsBlockedLanesAsPending proves that what no claim takes is not due, whether a claim has marked it
// or not (contract 5.12).
func TestOverviewCountsBlockedLanesAsPending(t *testing.T) {
	for name, each := range map[string]struct {
		fails error
		head  ops.HandlerOverview
	}{
		"behind a poisoned one": {handler.Poison(errors.New("no")),
			ops.HandlerOverview{Poisoned: ops.Count{N: 1}, Pending: ops.Count{N: 3}, Parked: ops.Count{N: 2},
				ParkedBy: ops.Count{N: 1}}},
		"behind a delayed one": {handler.RetryAfter(time.Hour, errors.New("no")),
			ops.HandlerOverview{Pending: ops.Count{N: 4}}},
	} {
		t.Run(name, func(t *testing.T) {
			inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
				r := newRig(t, d, nil, handler.Ordered())
				r.fail("mail", "1", each.fails)
				accept := func(id, lane string) {
					m := inboxtest.Message(id)
					m.OrderingKey = []byte(lane)
					_, err := r.ib.Accept(t.Context(), m)
					require.NoError(t, err)
				}
				accept("1", "a")
				r.process()
				r.clock.Advance(time.Minute)
				accept("2", "a")
				accept("3", "a")
				r.clock.Advance(time.Minute)
				accept("4", "b")
				r.clock.Advance(time.Second)
				want := each.head
				want.Obstacle, want.StoredOnly = "no living worker lists it", true
				want.HandlerKey, want.Due, want.Waiting, want.OldestDueAge = "mail", ops.Count{N: 1}, ops.Count{N: 2}, time.Second
				byHand, err := ops.New(d.Another(t), func(o *ops.Options) { o.Clock = r.clock })
				require.NoError(t, err)
				for _, o := range []*ops.Ops{r.ops, byHand} {
					overview, err := o.Overview(t.Context())
					require.NoError(t, err)
					got := overview.Handlers[slices.IndexFunc(overview.Handlers, func(h ops.HandlerOverview) bool {
						return h.HandlerKey == "mail"
					})]
					got.Ended = ops.Ended{}
					require.Equal(t, want, got)
				}
			})
		})
	}
}

// TestAuditReadsOnlyTheMatchingPeriod proves that reading a long audit stops where nothing older can
// match.
func TestAuditReadsOnlyTheMatchingPeriod(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1")
		for range 30 {
			r.clock.Advance(time.Hour)
			_, err := r.ops.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
			require.NoError(t, err)
		}
		now := r.clock.Now()
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{From: now.Add(-3 * time.Hour), To: now}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 3)
		require.LessOrEqual(t, page.Scanned, 6)
		page, err = r.ops.Audit(t.Context(), ops.AuditFilter{From: now.Add(-29 * time.Hour), To: now.Add(-27 * time.Hour)},
			"", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 2)
		require.LessOrEqual(t, page.Scanned, 5)
		r.clock.Advance(-10 * time.Minute)
		_, err = r.ops.Message(t.Context(), "bob", ops.MessageRef{ID: "1"})
		require.NoError(t, err)
		page, err = r.ops.Audit(t.Context(), ops.AuditFilter{To: now, From: now.Add(-time.Hour)}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 2)
		require.Equal(t, ops.Actor("bob"), page.Items[0].Actor, "the IDs ascend although the clock went back")
	})
}

// TestPauseWorksWithoutTheApplication proves that the CLI, which knows no handlers, pauses what
// workers list or what is stored.
func TestPauseWorksWithoutTheApplication(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Handlers(inboxtest.Do("now", inboxtest.Nothing, handler.LegacyKeys("before"))))
		o, err := ops.New(d.Another(t))
		require.NoError(t, err)
		require.ErrorIs(t, o.Pause(t.Context(), ada, "now"), ops.ErrNotFound)
		inboxtest.Accept(t, ib, "1")
		require.NoError(t, o.Pause(t.Context(), ada, "now"))
		require.Zero(t, inboxtest.Process(t, ib).Picked)
		require.NoError(t, o.Resume(t.Context(), ada, "now"))

		// It was paused before a rename and stays paused, whichever key resumes it.
		require.NoError(t, d.DB.Create(&models.Handler{HandlerKey: "before", Paused: true}).Error)
		renamed := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("now", inboxtest.Nothing,
			handler.LegacyKeys("before"))))
		require.Zero(t, inboxtest.Process(t, renamed).Picked)
		require.NoError(t, renamed.Resume(t.Context(), "now"))
		again := inboxtest.New(t, d.Another(t), inboxtest.Handlers(inboxtest.Do("now", inboxtest.Nothing,
			handler.LegacyKeys("before"))))
		require.Equal(t, 1, inboxtest.Process(t, again).Picked)
	})
}

func TestCanAgreesWithTheMethods(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		clean := func(o *ops.Options) {
			o.Cleanup = func(context.Context) (handler.Deleted, error) { return handler.Deleted{}, nil }
		}
		alone := func(configure ...func(*ops.Options)) (*ops.Ops, error) { return ops.New(r.d.DB, configure...) }
		for name, c := range map[string]struct {
			open                       func(...func(*ops.Options)) (*ops.Ops, error)
			configure                  func(*ops.Options)
			replay, reAccept, cleaning error
		}{
			"the tables alone": {alone, nil, ops.ErrNeedsApplication, ops.ErrNeedsApplication, ops.ErrNeedsApplication},
			"replay allowed": {alone, allowReplay, ops.ErrNeedsApplication, ops.ErrNeedsApplication,
				ops.ErrNeedsApplication},
			"with a cleanup":          {alone, clean, ops.ErrNeedsApplication, ops.ErrNeedsApplication, nil},
			"the application":         {r.ib.Ops, nil, ops.ErrReplayOff, nil, nil},
			"which allows replay":     {r.ib.Ops, allowReplay, nil, nil, nil},
			"with another's clean-up": {r.ib.Ops, clean, ops.ErrReplayOff, nil, nil},
		} {
			o, err := c.open(c.configure)
			require.NoError(t, err, name)
			_, replay := o.Replay(t.Context(), ada, ops.MessageRef{ID: "nothing"}, ops.Edit{})
			id := uuid.NewString()
			if c.reAccept != nil {
				id = "whatever it is"
			}
			_, reAccept := o.ReAccept(t.Context(), ada, id)
			_, cleaning := o.Cleanup(t.Context(), ada)
			for action, of := range map[ops.Action]struct{ want, said, other error }{
				ops.ActionReplay:   {c.replay, replay, ops.ErrNotFound},
				ops.ActionReAccept: {c.reAccept, reAccept, ops.ErrNotFound},
				ops.ActionCleanup:  {c.cleaning, cleaning, nil},
			} {
				if of.want == nil {
					require.NoError(t, o.Can(action), "%s: %s", name, action)
					require.ErrorIs(t, of.said, of.other, "%s: %s", name, action)
					continue
				}
				require.ErrorIs(t, o.Can(action), of.want, "%s: %s", name, action)
				require.Equal(t, o.Can(action), of.said, "%s: %s", name, action)
			}
			require.NoError(t, o.Can(ops.ActionRetry))
		}
	})
}

func TestActionsThatNeedTheApplicationReturnATypedError(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		o, err := ops.New(r.d.DB, allowReplay)
		require.NoError(t, err)
		require.NoError(t, o.CheckSchema(t.Context()))
		_, err = o.Cleanup(t.Context(), ada)
		require.ErrorIs(t, err, ops.ErrNeedsApplication)
		require.ErrorContains(t, err, "Inbox.Ops")
		_, err = o.Replay(t.Context(), ada, ops.MessageRef{ID: "1"}, ops.Edit{})
		require.ErrorIs(t, err, ops.ErrNeedsApplication)
		_, err = o.ReAccept(t.Context(), ada, r.reject(1, "bad"))
		require.ErrorIs(t, err, ops.ErrNeedsApplication)
		require.Empty(t, r.audit())

		r.poison("mail", "no", "1")
		r.accept("1")
		r.process()
		require.NoError(t, o.Retry(t.Context(), ada, r.ref("mail", "1")), "all else works without")
	})
}

func TestCleanupByFunctionIsAudited(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		clean := func(o *ops.Options) {
			o.Cleanup = func(context.Context) (handler.Deleted, error) { return handler.Deleted{Messages: 3}, nil }
		}
		without, err := ops.New(r.d.DB, clean)
		require.NoError(t, err)
		instead, err := r.ib.Ops(clean)
		require.NoError(t, err)
		for i, o := range []*ops.Ops{without, instead} {
			deleted, err := o.Cleanup(t.Context(), ada)
			require.NoError(t, err)
			require.EqualValues(t, 3, deleted.Messages)
			require.Len(t, r.audit(), 2*(i+1))
		}
	})
}

func TestOperatorsCleanupIsAuditedWithItsCounts(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1", "2")
		r.process()
		r.clock.Advance(2 * time.Hour)
		deleted, err := r.ops.Cleanup(t.Context(), ada)
		require.NoError(t, err)
		require.EqualValues(t, 2, deleted.Messages)
		page, err := r.ops.Audit(t.Context(), ops.AuditFilter{}, "", 0)
		require.NoError(t, err)
		require.Len(t, page.Items, 2)
		var end struct {
			Event   string
			Deleted handler.Deleted
		}
		require.NoError(t, json.Unmarshal([]byte(page.Items[0].Detail), &end))
		require.Equal(t, "ended", end.Event)
		require.Equal(t, deleted, end.Deleted)
	})
}

func TestDeleteTakesAMessageWithAllItsStatuses(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poison("mail", "no", "1")
		r.accept("1", "2")
		inboxtest.Exec(t, r.d.DB,
			`UPDATE inbox_handler_statuses SET processing_started_at = created_at WHERE message_id = '1' AND handler_key = 'ship'`)
		before := r.rows()
		require.ErrorIs(t, r.ops.Delete(t.Context(), ada, ops.MessageRef{ID: "1"}, "1"), ops.ErrProcessing)
		require.Equal(t, before, r.rows(), "the other handler's status, too")
		inboxtest.Exec(t, r.d.DB, `UPDATE inbox_handler_statuses SET processing_started_at = NULL`)
		r.process()
		require.NoError(t, r.ops.Delete(t.Context(), ada, ops.MessageRef{ID: "1"}, "1"))
		require.Len(t, inboxtest.Statuses(t, r.ib), 2)
		require.Equal(t, 1, inboxtest.CountMessages(t, r.ib))
		require.Equal(t, handler.OutcomeAccepted, inboxtest.Accept(t, r.ib, "1")[0].Outcome, "nothing remembers it")
		require.Equal(t, []string{"ada delete message 1"}, r.audit())
	})
}

func TestAuditIsListedAndSearched(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.accept("1", "2", "3")
		for i, id := range []string{"1", "2", "3"} {
			r.clock.Advance(time.Minute)
			_, err := r.ops.Message(t.Context(), []ops.Actor{"ada", "bob"}[i%2], ops.MessageRef{ID: id})
			require.NoError(t, err)
		}
		find := func(filter ops.AuditFilter) (targets []string) {
			for cursor := ops.Cursor(""); ; {
				page, err := r.ops.Audit(t.Context(), filter, cursor, 1)
				require.NoError(t, err)
				for _, e := range page.Items {
					targets = append(targets, e.Target)
				}
				if cursor = page.Next; cursor == "" {
					return targets
				}
			}
		}
		require.Equal(t, []string{"message 3", "message 2", "message 1"}, find(ops.AuditFilter{}))
		require.Equal(t, []string{"message 3", "message 1"}, find(ops.AuditFilter{Actor: "ada"}))
		require.Equal(t, []string{"message 2"}, find(ops.AuditFilter{Target: "2"}))
		require.Empty(t, find(ops.AuditFilter{Action: ops.ActionRetry}))
		require.Equal(t, []string{"message 3"}, find(ops.AuditFilter{From: r.clock.Now()}))
		require.Equal(t, []string{"message 2", "message 1"}, find(ops.AuditFilter{To: r.clock.Now()}))
	})
}

// TestOpsSeesOnlyItsTables runs two inboxes in one database under different prefixes (contract
// 3.4).
func TestOpsSeesOnlyItsTables(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		r.accept("1")
		other, err := inbox.New("other", d.DB, inbox.Configure(func(o *inbox.Options) {
			o.TablePrefix = "other_"
		}), inboxtest.Handlers(inboxtest.Do("h", inboxtest.Nothing)))
		require.NoError(t, err)
		require.NoError(t, other.Migrate(t.Context()))
		theirs, err := other.Ops()
		require.NoError(t, err)
		count, err := theirs.Count(t.Context(), ops.Filter{})
		require.NoError(t, err)
		require.Zero(t, count)
		require.ErrorIs(t, theirs.Delete(t.Context(), ada, ops.MessageRef{ID: "1"}, "1"), ops.ErrNotFound)
		byHand, err := ops.New(d.DB, func(o *ops.Options) { o.Naming.Prefix = "other_" })
		require.NoError(t, err)
		overview, err := byHand.Overview(t.Context())
		require.NoError(t, err)
		require.Equal(t, "other", overview.Inbox)
		require.Empty(t, overview.Handlers)
	})
}

// TestMessagesShowAnOpenCircuitBreaker proves contract 11.1: an operator's faces say what
// the workers' health says.
func TestMessagesShowAnOpenCircuitBreaker(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(),
			inboxtest.Handlers(inbox.Func("mail", func(context.Context, inboxtest.Bytes) error {
				return errors.New("boom")
			}, handler.CircuitBreaker(handler.Breaker{Failures: 1, OpenFor: time.Hour}),
				handler.Backoff(func(int) time.Duration { return 0 }))))
		_, err := ib.Accept(t.Context(), inboxtest.Message("1"))
		require.NoError(t, err)
		inboxtest.Start(t, ib)
		o, err := ops.New(d.Another(t))
		require.NoError(t, err)
		inboxtest.Eventually(t, func() bool {
			m, err := o.Message(t.Context(), ada, ops.MessageRef{ID: "1"})
			return err == nil && len(m.Statuses) == 1 && m.Statuses[0].Obstacle == "circuit breaker open"
		}, "the message says what it waits for")
		overview, err := o.Overview(t.Context())
		require.NoError(t, err)
		require.Len(t, overview.Reasons, 1)
		require.Equal(t, []string{health.Circuit, "degraded", "mail"},
			[]string{overview.Reasons[0].Code, string(overview.Reasons[0].State), overview.Reasons[0].HandlerKey})
		require.Equal(t, "circuit breaker open", overview.Handlers[0].Obstacle)
	})
}

// TestMessagesShowAHangingCall proves contract 11.1: the page of the message
// that hangs says so, and that of the one that waits behind it in its lane says why.
func TestMessagesShowAHangingCall(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		entered, leave := make(chan struct{}, 10), make(chan struct{})
		ib := inboxtest.New(t, d.DB, inboxtest.Brisk(), inbox.Configure(func(o *inbox.Options) {
			o.LongRunning = time.Millisecond
		}),
			inboxtest.Handlers(inbox.Func("mail", func(context.Context, inboxtest.Bytes) error {
				entered <- struct{}{}
				<-leave
				return nil
			}, handler.Ordered())))
		for _, id := range []string{"1", "2"} {
			m := inboxtest.Message(id)
			m.OrderingKey = []byte("k")
			_, err := ib.Accept(t.Context(), m)
			require.NoError(t, err)
		}
		inboxtest.Start(t, ib)
		inboxtest.Receive(t, entered, "the call")
		o, err := ops.New(d.Another(t))
		require.NoError(t, err)
		obstacle := func(id string) string {
			m, err := o.Message(t.Context(), ada, ops.MessageRef{ID: id})
			require.NoError(t, err)
			return m.Statuses[0].Obstacle
		}
		inboxtest.Eventually(t, func() bool {
			return obstacle("1") == "its call does not return"
		}, "the message says that it hangs")
		require.Equal(t, "a call does not return", obstacle("2"))
		overview, err := o.Overview(t.Context())
		require.NoError(t, err)
		require.Equal(t, "a call does not return", overview.Handlers[0].Obstacle)
		i := slices.IndexFunc(overview.Reasons, func(r ops.HealthReason) bool { return r.Code == health.LongRunning })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, []string{"1"}, overview.Reasons[i].MessageIDs)

		close(leave)
		inboxtest.Eventually(t, func() bool {
			overview, err := o.Overview(t.Context())
			return err == nil && len(overview.Reasons) == 0 && overview.Handlers[0].Obstacle == "" &&
				ib.Counters().Processed == 2
		}, "all is clear")
	})
}
