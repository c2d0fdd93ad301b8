package storetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// laneNameTests cover lanes of handlers that have, or had, another name.
var laneNameTests = []test{
	{"a renamed handler's lanes are the same under all its names", func(s *suite) {
		// The rules of the program before a rename from "old" to "mail", of the program after it,
		// and of one that has dropped the legacy key too early.
		before, after, dropped := ruleOf("old"), ruleOf("mail", "old"), ruleOf("mail")
		lane := func(id, key, name string) store.NewMessage {
			m := ordered(id, "k", key)
			m.Handlers[0].Lane = store.LaneOf(name, m.OrderingKey)
			return m
		}
		s.accept(lane("m1", "old", "old"), lane("m2", "mail", "old"), lane("m3", "old", "old"), lane("m4", "mail", "mail"),
			lane("m5", "mail", "old"))
		first := s.claimUnder(after, noon, 5, "mail", "old").Claims
		require.Equal(s, []string{"m1/old"}, claimed(first))
		s.complete(noon, first...)
		s.advance(after, first...)
		require.Empty(s, s.claimUnder(before, noon, 5, "old").Claims,
			"m2 is before m3, under a key the old program does not know")
		for _, id := range []string{"m2/mail", "m3/old", "m4/mail", "m5/mail"} {
			claims := s.claimUnder(after, noon, 5, "mail", "old").Claims
			require.Equal(s, []string{id}, claimed(claims))
			s.complete(noon, claims...)
			require.NotEmpty(s, append(s.advance(after, claims...), id))
		}
		s.accept(lane("n1", "mail", "old"), lane("n2", "mail", "old"), lane("n3", "mail", "old"))
		for _, id := range []string{"n1", "n2", "n3"} {
			claims := s.claimUnder(dropped, noon, 5, "mail").Claims
			require.Equal(s, []string{id + "/mail"}, claimed(claims), "a row's own name counts")
			next := noon.Add(time.Minute)
			failed := settlement(claims[0])
			failed.NextAttemptAt = &next
			s.settle(failed)
			require.Empty(s, s.claimUnder(dropped, noon, 5, "mail").Claims, "also while its time has not come")
			claims = s.claimUnder(dropped, next, 5, "mail").Claims
			require.Equal(s, []string{id + "/mail"}, claimed(claims))
			s.complete(noon, claims...)
			s.advance(dropped, claims...)
		}
	}},
	{"lanes of a name that their handler has dropped are found", func(s *suite) {
		lane := func(id, key, name string) store.NewMessage {
			m := ordered(id, "k", key)
			m.Handlers[0].Lane = store.LaneOf(name, m.OrderingKey)
			return m
		}
		stray := func(rules map[string]store.LaneRule) []string {
			s.Helper()
			keys, err := s.store.StrayLanes(s.ctx, rules)
			require.NoError(s, err)
			return keys
		}
		dropped := map[string]store.LaneRule{"mail": ruleOf("mail"), "stock": ruleOf("stock")}
		require.Empty(s, stray(dropped))
		s.accept(lane("m1", "old", "old"), lane("m2", "mail", "old"), lane("m3", "mail", "mail"), ordered("m4", "k", "stock"),
			message("m5", "mail"), ordered("m6", "k", "foreign"))
		require.Equal(s, []string{"mail"}, stray(dropped))
		require.Empty(s, stray(map[string]store.LaneRule{"mail": ruleOf("mail", "old"), "old": ruleOf("mail", "old")}))
		require.Empty(s, stray(map[string]store.LaneRule{"stock": ruleOf("stock")}), "mail is not asked for")
		require.Empty(s, stray(nil))

		rule := ruleOf("mail", "old")
		s.complete(noon, s.claimUnder(rule, noon, 1, "old").Claims...)
		s.poison(s.claimUnder(rule, noon, 1, "mail").Claims[0])
		require.Equal(s, []string{"mail"}, stray(dropped), "poisoned, m2 parks a lane that m3 is not in")
		row := s.status("m2", "mail")
		applied, err := s.store.Complete(s.ctx, []store.Completion{{StatusID: row.ID, Version: int64(row.Version),
			Outcome: models.OutcomeDiscarded}}, noon, store.AwaitLocked)
		require.NoError(s, err)
		require.Equal(s, []bool{true}, applied)
		require.Empty(s, stray(dropped), "what has ended is in no lane")
	}},
	{"waiting rows of an unknown handler key are found, and poisoning ends their waiting", func(s *suite) {
		for i := range 4 {
			s.accept(ordered(fmt.Sprintf("m%d", i), "k", "gone"))
		}
		s.poison(s.claimUnder(ruleOf("gone"), noon, 1, "gone").Claims[0])
		require.Empty(s, s.claimUnder(ruleOf("gone"), noon, 1, "gone").Claims)
		require.Len(s, s.waiting(), 3)
		keys, err := s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		require.Equal(s, []string{"gone"}, keys)
		refs, err := s.store.PendingOf(s.ctx, "gone", 2)
		require.NoError(s, err)
		require.Len(s, refs, 2)
		refs, err = s.store.PendingOf(s.ctx, "gone", 10)
		require.NoError(s, err)
		require.Len(s, refs, 3)
		require.Equal(s, store.LaneOf("gone", []byte("k")), refs[0].Lane)
		for _, ref := range refs {
			s.poison(store.Claim{Ref: ref})
		}
		require.Empty(s, s.waiting())
		keys, err = s.store.PendingKeys(s.ctx)
		require.NoError(s, err)
		require.Empty(s, keys)
	}},
}
