package storetest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
)

var sizeTests = []test{
	{"20,000 statuses are accepted, claimed, completed and cleaned in one go each", func(s *suite) {
		messages := 5000
		if raceDetector && !s.postgres() {
			messages = 500
			s.Log("a tenth of it: with the race detector SQLite in pure Go takes a minute")
		}
		handlers := []string{"a", "b", "c", "d"}
		batch := make([]store.NewMessage, messages)
		for i := range batch {
			batch[i] = message(fmt.Sprintf("m%05d", (i*7919)%messages), handlers...)
		}
		for i, accepted := range s.accept(batch...) {
			require.Equal(s, store.Accepted{Inserted: true, StatusesAdded: 4}, accepted, i)
		}
		require.NotContains(s, s.accept(batch...), store.Accepted{Inserted: true, StatusesAdded: 4})
		order := pairs(s.statuses())
		for i, handler := range handlers {
			require.Equal(s, batch[messages-1].ID+"/"+handler, order[len(order)-4+i])
		}
		claims := s.claim(noon, messages, handlers...)
		require.Len(s, claims, len(handlers)*messages)
		settlements := make([]store.Settlement, len(claims))
		for i := range claims {
			settlements[i] = settlement(claims[i])
		}
		s.settle(settlements...)
		claims = s.claim(noon, messages, handlers...)
		require.Len(s, claims, len(handlers)*messages)
		s.complete(noon, claims...)
		require.Equal(s, store.CleanupResult{Messages: int64(messages), Statuses: int64(len(claims)), Done: true},
			s.cleanAll(store.CleanupRequest{Cutoff: cutoff, Limit: 2 * messages}))
	}},
}
