package mysql_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/racetest"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/storetest"
	"github.com/gorm-inbox/inbox/models"
)

// deadlocks returns how many deadlocks a server has counted, -1 if it does not show that.
func deadlocks(db *gorm.DB) int {
	count := -1
	if db.Raw(`SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'INNODB_DEADLOCKS'`).Scan(&count).Error != nil {
		return -1
	}
	return count
}

// TestNoDeadlockReachesAcceptorsOfOverlappingBatches lets four acceptors accept 120 batches each, of 50 messages out of
// 400 in any order, for two handlers.
func TestNoDeadlockReachesAcceptorsOfOverlappingBatches(t *testing.T) {
	onEach(t, checkNoDeadlockReachesAcceptorsOfOverlappingBatches)
}

func checkNoDeadlockReachesAcceptorsOfOverlappingBatches(t *testing.T, open opener) {
	const acceptors, batches, messages = 4, 120, 400
	db, st := storetest.Migrated(t, open(t))
	before := deadlocks(db)
	var inserted, added atomic.Int64
	for _, err := range racetest.Together(acceptors, func(acceptor int) error {
		random := rand.New(rand.NewPCG(7, uint64(acceptor)))
		for range batches {
			batch := store.AcceptBatch{Now: loaded}
			for _, i := range random.Perm(messages)[:50] {
				batch.Messages = append(batch.Messages, store.NewMessage{
					Message: models.Message{ID: fmt.Sprint("m", i), Namespace: "shop", Type: "order", Source: "/shop",
						Content: []byte("{}"), SerializedProperties: "{}"},
					Handlers: []store.NewStatus{{HandlerKey: "mail"}, {HandlerKey: "stock"}}})
			}
			results, err := st.Accept(t.Context(), batch)
			if err != nil {
				return err
			}
			for _, result := range results {
				if result.Inserted {
					inserted.Add(1)
				}
				added.Add(int64(result.StatusesAdded))
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	require.EqualValues(t, messages, inserted.Load())
	require.EqualValues(t, 2*messages, added.Load())
	t.Logf("the server counted %d deadlocks", deadlocks(db)-before)
}
