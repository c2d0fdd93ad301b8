package postgres

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/sqltest"
)

// ofPartitions are the statements that plain tables do not have, or that read only the catalog or a sequence. Their
// plans are those of TestPartitionedPlans.
var ofPartitions = []string{"layoutSQL", "slotsSQL", "currentSlotSQL", "detachedSQL", "beginSlotSQL", "slotTurnSQL", "noMoreSQL",
	"newestSQL", "oldestSQL", "knownSQL", "stayingSQL", "rememberSQL", "forgottenSQL", "thinStatusesSQL", "thinSQL",
	"bytesSQL", "begunSQL", "followsNotSQL", "aloneSQL", "readySQL", "strayIDsSQL", "forgetIDsSQL", "lastNumberSQL", "rememberAllSQL", "keptRowsSQL"}

// TestPartitionedPlans proves that no statement of the hot path, nor one that runs while the tables are locked, reads a
// whole partition.
func TestPartitionedPlans(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	x := openExplainer(t)
	sqltest.Load(t, x.db,
		fmt.Sprintf(`INSERT INTO inbox_messages SELECT 'm' || n, 'c', n, '', '', '', '\x00', '', '{}', NULL, now() FROM generate_series(1, %d) n`, rows),
		fmt.Sprintf(`INSERT INTO inbox_handler_statuses (id, message_number, message_id, handler_key, created_at, outcome, completed_at)
		SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 'm' || n, 'h', now(), '', CASE WHEN n %% 100 > 0 THEN now() END FROM generate_series(1, %d) n`, rows))
	require.NoError(t, x.store.Partition(t.Context()))
	require.NoError(t, x.db.Exec(`ANALYZE inbox_parted_messages, inbox_parted_handler_statuses, inbox_message_ids`).Error)

	now, numbers := time.Now(), []int64{1, 2, 3, 100}
	ids, uuids, keys := []string{"m1", "new", "newer"}, []string{uuid.NewString()}, []string{"h"}
	claimed := []any{keys, []int64{100}, now, nil, []*time.Time{nil}, []*string{nil}, []int64{1}, []int64{math.MaxInt32}}
	for _, each := range []planned{
		{"acceptNewSQL", acceptNewSQL, []any{ids, keys, keys, keys, keys, keys, []string{"", "", ""}, now, uuids, []string{"new"}, keys,
			[]*int64{nil}, []*int64{nil}, []int32{1, 1, 1}, []int32{0, 0, 0}, []string{"c"}, []string{"c"}, []*time.Time{}, []byte{}},
			nil, 50},
		{"acceptLockSQL", acceptLockSQL, []any{ids, []string{"", "", ""}, []string{"c", "c", "c"}, now},
			[]string{"inbox_message_ids_pkey", "inbox_messages_number_p0"}, 20},
		{"claimManualSQL", claimManualSQL, claimed, []string{"inbox_handler_statuses_due_p0", "inbox_handler_statuses_open_p0"}, 1000},
		{"completeSQL", completeSQL, []any{now, uuids, []int64{1}, []string{""}}, []string{"inbox_handler_statuses_open_p0"}, 10},
		{"expiredSQL", expiredSQL, []any{now, time.Time{}, 0, 100, now, []string{}, []time.Time{}, int64(math.MaxInt64)},
			[]string{"inbox_messages_received_at_p0", "inbox_message_ids_number", "inbox_handler_statuses_pkey_p0"}, 500},
		{"cleanupMessagesSQL", cleanupMessagesSQL, []any{numbers, now, []string{}, []time.Time{}},
			[]string{"inbox_message_ids_number", "inbox_handler_statuses_pkey_p0"}, 50},
		{"newestSQL", newestSQL, nil, []string{"inbox_messages_received_at_p0"}, 5},
		{"oldestSQL", oldestSQL, nil, []string{"inbox_messages_received_at_p0"}, 5},
		{"knownSQL", knownSQL, []any{100}, []string{"inbox_message_ids_number"}, 150},
		{"stayingSQL", stayingSQL, []any{100, numbers, now.Add(time.Hour)},
			[]string{"inbox_message_ids_number", "inbox_handler_statuses_open_p0", "inbox_messages_received_at_p0"}, 110},
		{"bytesSQL", bytesSQL, []any{numbers}, []string{"inbox_messages_number_p0"}, 10},
		{"forgottenSQL", forgottenSQL, []any{100, 0}, []string{"inbox_messages_number_p0", "inbox_message_ids_number"}, 500},
		{"rememberSQL", rememberSQL, []any{numbers}, []string{"inbox_messages_number_p0"}, 50},
		{"keptRowsSQL", keptRowsSQL, []any{100}, nil, 10},
		{"thinSQL", thinSQL, []any{numbers}, []string{"inbox_messages_number_p0"}, 50},
		{"thinStatusesSQL", thinStatusesSQL, []any{numbers}, []string{"inbox_handler_statuses_pkey_p0"}, 50},
	} {
		t.Run(each.name, func(t *testing.T) {
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				explained := x.explain(t, mode, x.store.ofSlot(each.statement, 0), each.args...)
				scans := strings.Join(explained.Scans(), "\n") + "\n"
				require.NotContains(t, scans, "Seq Scan inbox_parted_messages_p0")
				require.NotContains(t, scans, "Seq Scan inbox_parted_handler_statuses_p0")
				for _, expected := range each.expected {
					require.Contains(t, scans, expected)
				}
				require.LessOrEqual(t, explained.RowsRead(), each.most, scans)
			}
		})
	}
}
