package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/ops"
)

func TestAuditEntriesAreSummedUpInWords(t *testing.T) {
	for detail, want := range map[string]string{
		`{}`:                   "",
		`{"namespace":"shop"}`: "namespace shop",
		`{"handler_key":"orders.mail","message_id":"m1"}`:                                                           "handler key orders.mail, message ID m1",
		`{"event":"counted","filter":{"states":["poisoned"],"handler_keys":["mail"]},"matched":14,"capped":false}`:  "counted 14, handler keys mail, states poisoned",
		`{"event":"counted","filter":{"type":"t"},"matched":10000,"capped":true}`:                                   "counted 10000+, type t",
		`{"filter":{"states":["poisoned","failing"]},"status_ids":["1","2","3","4"]}`:                               "changed 4, states poisoned and failing",
		`{"event":"ended","filter":{"type":"t"},"done":14,"skipped":0,"more":true,"error":"interrupted"}`:           "ended, done 14, error interrupted, more, type t",
		`{"event":"ended","deleted":{"Messages":2,"Markers":0}}`:                                                    "ended, deleted Messages 2",
		`{"keys":["a","b","c","d"],"offset":12345678901234567,"partition":null,"halted":"orders/3: \u003cb\u003e"}`: "halted orders/3: <b>, 4 keys, offset 12345678901234567",
		`{"event":"requested","request_id":"r1","detail":{"attempt":2}}`:                                            "requested, attempt 2, request ID r1",
		`{"event":"requested","request_id":"r1"}`:                                                                   "requested, request ID r1",
		`no JSON`: "no JSON",
	} {
		require.Equal(t, want, ops.AuditEntry{Detail: detail}.Summary())
	}
}

func TestSummaryOfARerunBeginsWithItsReason(t *testing.T) {
	entry := ops.AuditEntry{Action: "rerun", Detail: `{"completed_at":"2026-01-01T12:00:00Z","namespace":"shop",` +
		`"reason":"the mail got lost","state":"completed","status_id":"s1"}`}
	require.Equal(t, "was completed, reason: the mail got lost, completed at 2026-01-01T12:00:00Z, namespace shop, status ID s1",
		entry.Summary())
	entry.Detail = `no JSON`
	require.Equal(t, "no JSON", entry.Summary())
}
