package storetest

import (
	"encoding/json"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// storedStatuses reads every status in the order of acceptance, with times in UTC.
func storedStatuses(t require.TestingT, db *gorm.DB) []models.HandlerStatus {
	var rows []models.HandlerStatus
	require.NoError(t, db.Order("sequence").Find(&rows).Error)
	for i := range rows {
		rows[i].CreatedAt = rows[i].CreatedAt.UTC()
		for _, at := range []*time.Time{rows[i].ProcessingStartedAt, rows[i].NextAttemptAt, rows[i].CompletedAt} {
			if at != nil {
				*at = at.UTC()
			}
		}
	}
	return rows
}

// inWords formats a row on one line, the same for equal rows. A failing comparison prints it.
func inWords(row models.HandlerStatus) string {
	words, err := json.Marshal(row)
	if err != nil { // only strings, numbers and times
		panic(err)
	}
	return string(words)
}

// checkRows checks what holds for the statuses at any moment, whatever was done.
func checkRows(t require.TestingT, rows []models.HandlerStatus) {
	found, numbers := map[[2]string]bool{}, map[string]int64{}
	for _, row := range rows {
		name := row.MessageID + "/" + row.HandlerKey
		if number, known := numbers[row.MessageID]; known {
			require.Equal(t, number, row.MessageNumber, "%s: the number of its message", name)
		}
		numbers[row.MessageID] = row.MessageNumber
		pair := [2]string{row.MessageID, row.HandlerKey}
		require.False(t, found[pair], "%s: one status per message and handler (3.2)", name)
		found[pair] = true
		require.Positive(t, row.Version, name)
		require.Equal(t, row.CompletedAt != nil, row.Outcome != "", "%s: an outcome and only when completed", name)
		if row.CompletedAt != nil {
			require.False(t, row.IsPoisoned, "%s: completed and poisoned", name)
			require.Zero(t, row.AbandonedCount, "%s: a finished attempt resets it (5.9)", name)
		}
		if row.CompletedAt != nil || row.IsPoisoned {
			require.Nil(t, row.ProcessingStartedAt, "%s: at its end and claimed", name)
			require.Nil(t, row.NextAttemptAt, "%s: at its end and to be tried again (5.5)", name)
		}
		if row.ProcessingStartedAt == nil {
			require.Nil(t, row.WorkerID, "%s: a worker without a claim", name)
		}
	}
}

// checkSteps checks what holds between two reads of the statuses, by their IDs.
func checkSteps(t require.TestingT, before, after map[string]models.HandlerStatus, cleaned bool) {
	for id, was := range before {
		name := was.MessageID + "/" + was.HandlerKey
		is, there := after[id]
		if !there {
			require.True(t, cleaned, "%s: gone without a cleanup", name)
			require.NotNil(t, was.CompletedAt, "%s: gone, and it was not completed (6.4)", name)
			continue
		}
		if is.Version == was.Version {
			require.Equal(t, inWords(was), inWords(is), "%s: changed without a new version (3.2)", name)
			continue
		}
		require.Greater(t, is.Version, was.Version, "%s: a version never falls", name)
		require.Nil(t, was.CompletedAt, "%s: changed after it was completed", name)
		require.Equal(t, [3]any{was.MessageID, was.HandlerKey, was.Sequence},
			[3]any{is.MessageID, is.HandlerKey, is.Sequence}, name)
		require.Equal(t, was.CreatedAt, is.CreatedAt, name)
		require.GreaterOrEqual(t, is.RequeuedCount, was.RequeuedCount, name)
	}
}

// checkLanes checks what must hold for lanes, whatever was done. In unadvanced lanes the first row
// may be marked as waiting. Rows are in the order of acceptance.
func checkLanes(t require.TestingT, rows []models.HandlerStatus, unadvanced map[store.Lane]bool) {
	holders, firsts := map[store.Lane]models.HandlerStatus{}, map[store.Lane]models.HandlerStatus{}
	for _, row := range rows {
		if row.HoldsLane {
			require.True(t, claimedRow(row) && row.LaneKey != nil, "%s: holds a lane", inWords(row))
			other, held := holders[familyLane(row)]
			require.False(t, held, "%s and %s are claimed in one lane (5.12)", inWords(row), inWords(other))
			holders[familyLane(row)] = row
		}
		if row.IsWaiting {
			require.True(t, pending(row) && row.ProcessingStartedAt == nil && row.LaneKey != nil, "%s: waits", inWords(row))
		}
		if rules[row.HandlerKey] == nil || row.LaneKey == nil || row.CompletedAt != nil {
			continue
		}
		require.Equal(t, claimedRow(row), row.HoldsLane, "%s: claimed, and so is its lane", inWords(row))
		if row.IsPoisoned && rules[row.HandlerKey].SkipPoisoned {
			continue
		}
		if _, found := firsts[familyLane(row)]; !found {
			firsts[familyLane(row)] = row
		}
	}
	for lane, row := range firsts {
		if _, held := holders[lane]; !held && !unadvanced[lane] {
			require.False(t, row.IsWaiting, "%s: first in its lane and forgotten (5.12)", inWords(row))
		}
	}
}
