package redaction_test

import (
	"bytes"
	"regexp"
	"strings"
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

func TestHooksRunInSequence(t *testing.T) {
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

func TestHookSeesTheErrorsContext(t *testing.T) {
	var seen redact.Value
	r := redaction.New(func(v redact.Value) []byte { seen = v; return v.Bytes })
	require.Equal(t, "text", r.Error(redact.Value{MessageID: "m", HandlerKey: "h", Channel: "c", Type: "t"}, "text"))
	require.Equal(t, redact.Value{Part: redact.PartError, MessageID: "m", HandlerKey: "h", Channel: "c", Type: "t",
		Bytes: []byte("text")}, seen)
	seen = redact.Value{}
	require.Empty(t, r.Error(redact.Value{}, ""))
	require.Zero(t, seen, "there is nothing to hide")
}

func TestPanickingHookReplacesTheTextWithANote(t *testing.T) {
	r := redaction.New(func(redact.Value) []byte { panic("hook") }).Then(redact.Common)
	require.Equal(t, redaction.Note, r.Error(redact.Value{}, "secret"))
	require.Equal(t, redaction.Note, string(r.Bytes(redact.Value{Bytes: []byte("secret")})))
}

// A text that quotes a whole record is cut before it is redacted. Wherever the cut goes through a secret, nothing of
// the secret is left.
func TestTruncatedErrorLeavesNoPartOfASecret(t *testing.T) {
	longest := 0
	customer := regexp.MustCompile(`customer [0-9]{12}`)
	r := redaction.New(func(v redact.Value) []byte {
		longest = max(longest, len(v.Bytes))
		return redact.Common(redact.Value{Part: v.Part, Bytes: customer.ReplaceAll(v.Bytes, []byte("[customer]"))})
	})
	for _, secret := range []string{
		"postgres://user:hunter2hunter2@host/db", "password='hunter2 hunter2'", "customer 123456789012",
		"card 4111 1111 1111 1111", `"api_key": "hunter2hunter2"`,
	} {
		for before := 16<<10 - len(secret) - 3; before < 16<<10+3; before++ {
			text := r.Error(redact.Value{}, strings.Repeat("x ", before/2)+strings.Repeat(" ", before%2)+secret+
				strings.Repeat(" y", 1<<14))
			require.NotContains(t, text, "hunter")
			require.NotContains(t, text, "customer")
			require.NotContains(t, text, "4111")
			require.LessOrEqual(t, len(text), 8<<10+64)
			require.Regexp(t, `… \(cut, it has 49\d{3} bytes\)$`, text)
		}
	}
	require.Equal(t, 16<<10, longest)
	require.Equal(t, "… (cut, it has 1048576 bytes)", redaction.New(redact.Common).Error(redact.Value{},
		"token="+strings.Repeat("a", 1<<20-6)), "nothing is sure to be whole")
}

func FuzzLongErrorLeavesNoHalfASecret(f *testing.F) {
	f.Add("a ", "/", uint(16<<10))
	f.Fuzz(func(t *testing.T, filler, after string, before uint) {
		if filler == "" || strings.Contains(filler+after, "hunter2") {
			return
		}
		text := strings.Repeat(filler, int(before%(20<<10))/len(filler)+1) + " password='hunter2 hunter2' " + after
		text += strings.Repeat(" y", 8<<10)
		whole := redaction.New(redact.Common).Error(redact.Value{}, text)
		require.LessOrEqual(t, len(whole), 16<<10+64)
		if unquoted := !strings.ContainsAny(filler, "'\"`\\"); unquoted {
			require.NotContains(t, whole, "hunter2")
		}
	})
}
