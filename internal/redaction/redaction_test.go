package redaction_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/redaction"
	"github.com/gorm-inbox/inbox/redact"
)

func TestPasswordsOfURLsAreMaskedWithoutAHook(t *testing.T) {
	var none redaction.Redactor
	require.Equal(t, "dial postgres://u:xxxxx@h/d: password=xxxxx",
		none.Error(redact.Value{}, "dial postgres://u:p@h/d: password=p"))
	require.Equal(t, "x:p@h", string(none.Bytes(redact.Value{Bytes: []byte("x:p@h")})))
	require.Equal(t, "x", redaction.New(nil).Then(nil).Error(redact.Value{}, "x"))
}

func TestHooksRunOneAfterTheOther(t *testing.T) {
	replace := func(from, to string) redact.Hook {
		return func(v redact.Value) []byte { return bytes.ReplaceAll(v.Bytes, []byte(from), []byte(to)) }
	}
	r := redaction.New(nil).Then(replace("a", "b")).Then(nil).Then(replace("b", "c"))
	require.Equal(t, "cc", r.Error(redact.Value{}, "ab"))
	nothing := redaction.New(func(redact.Value) []byte { return nil }).
		Then(func(redact.Value) []byte { return []byte("shown after all") })
	require.Empty(t, nothing.Error(redact.Value{}, "ab"))
	require.Nil(t, nothing.Bytes(redact.Value{Bytes: []byte("ab")}))
}

func TestHookSeesWhatIsKnownOfAnError(t *testing.T) {
	var seen redact.Value
	r := redaction.New(func(v redact.Value) []byte { seen = v; return v.Bytes })
	require.Equal(t, "text", r.Error(redact.Value{MessageID: "m", HandlerKey: "h", Channel: "c", Type: "t"}, "text"))
	require.Equal(t, redact.Value{Part: redact.PartError, MessageID: "m", HandlerKey: "h", Channel: "c", Type: "t",
		Bytes: []byte("text")}, seen)
	seen = redact.Value{}
	require.Empty(t, r.Error(redact.Value{}, ""))
	require.Zero(t, seen, "there is nothing to hide")
}

func TestNoteTakesThePlaceOfWhatTheHookPanicsOn(t *testing.T) {
	r := redaction.New(func(redact.Value) []byte { panic("hook") }).Then(redact.Common)
	require.Equal(t, redaction.Note, r.Error(redact.Value{}, "secret"))
	require.Equal(t, redaction.Note, string(r.Bytes(redact.Value{Bytes: []byte("secret")})))
}
