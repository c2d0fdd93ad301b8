package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

var snakeCase = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)

// requireSnakeCase fails if a member of an object, at any depth, is not in snake_case.
func requireSnakeCase(t testing.TB, command string, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			require.Regexp(t, snakeCase, name, command)
			requireSnakeCase(t, command, value)
		}
	case []any:
		for _, value := range v {
			requireSnakeCase(t, command, value)
		}
	}
}

// TestJSONOutputIsInSnakeCaseAndMatchesYAML runs each command that prints a result.
func TestJSONOutputIsInSnakeCaseAndMatchesYAML(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		r.poisoned("boom: \"x\"\n- 1 😀", "1", "2", "3", "4", "5", "true", "-")
		first, second := r.reject(1, []byte("k"), []byte{0xff}), r.reject(2, nil, nil)
		require.NoError(t, r.d.DB.Create(&models.Gap{ID: statusID, Channel: "c", Topic: "orders", FoundAt: inboxtest.Noon}).Error)
		require.NoError(t, r.d.DB.Create(&models.Lock{Name: "cleanup", OwnerID: statusID, ExpiresAt: inboxtest.Noon}).Error)
		require.NoError(t, r.d.DB.Create(&models.Worker{ID: workerID, Host: "h", HandlerKeys: `{"a":"c"}`, StartedAt: inboxtest.Noon,
			HeartbeatAt: time.Now(), Health: `[{"code":"open_circuit","state":"degraded","handler_key":"a","detail":"d"}]`}).Error)
		status := func(id string) string { return r.status(id).ID }
		for _, args := range [][]string{
			{"version"}, {"migrate", "print", "--dialect", "postgres"}, {"grants", "--reader", "r"}, {"migrate", "status"},
			{"migrate", "up", "--inbox", "test"},
			{"status"}, {"list"}, {"list", "--count"}, {"show", "1"}, {"failures"}, {"handlers"}, {"handler", failing}, {"workers"}, {"locks"},
			{"gaps"}, {"audit"}, {"rejected", "list"}, {"rejected", "show", first}, {"rejected", "show", first, "--show-payload"},
			{"retry", status("1")}, {"discard", status("2")}, {"retry", "--matching", "--message", "3", "--dry-run"},
			{"retry", "--matching", "--message", "3", "--yes"},
			{"delete", "4", "--confirm", "4"}, {"rejected", "delete", second, "--confirm", second},
			{"pause", failing}, {"resume", failing}, {"cleanup", "--retention", "1h", "--yes"},
		} {
			command := strings.Join(args, " ")
			out := r.done(append(args, "-o", "json")...)
			var value any
			out.json(&value)
			requireSnakeCase(t, command, value)
			if !changes(args) && args[0] != "pause" && args[0] != "resume" && args[0] != "audit" && args[0] != "status" && args[0] != "handler" && args[0] != "handlers" &&
				args[0] != "workers" && args[0] != "locks" && args[0] != "cleanup" && command != "migrate up --inbox test" {
				yaml := r.done(append(args, "-o", "yaml")...).out
				require.YAMLEq(t, out.out, yaml, command)
				requireHarmless(t, yaml)
			}
		}
	})
}

func TestYAMLEqualsJSON(t *testing.T) {
	for _, v := range []any{
		nil, "", "true", "No", "plain", "12", "1e3", " x", "a: b", "- a", "#", "é 注文 😀", evil, "a\nb", 12, -1.5, true,
		[]string{}, map[string]string{}, []any{[]any{1, []any{}}, map[string]any{"a": []any{1, 2}, "b c": map[string]any{"d": nil}}},
		struct{ Empty, Full []struct{ A, B any } }{Full: []struct{ A, B any }{{1, "x"}, {[]int{1}, map[string]int{"y": 2}}}},
		handler.Properties{Attributes: map[string]string{"Any-Name: x": "1", evil: "2", "no": "3"}},
		1_000_000 * time.Second, 1_000_001 * time.Second / 2, 12 * time.Nanosecond, strings.Repeat("long key ", 300),
		map[string]string{strings.Repeat("long key ", 100): "yes"}, "2026-01-02", "12:30", "\xff\xfe", "\ufeff", "a\n\n  b\n",
	} {
		var asJSON, asYAML bytes.Buffer
		require.NoError(t, writeJSON(&asJSON, v))
		a := &app{system: system{out: &asYAML}, output: "yaml"}
		require.NoError(t, a.writeStructured(v))
		require.YAMLEq(t, asJSON.String(), asYAML.String(), asYAML.String())
		requireHarmless(t, asYAML.String())
	}
}

func TestYAMLEscapesControlCharacters(t *testing.T) {
	var out bytes.Buffer
	a := &app{system: system{out: &out}, output: "yaml"}
	require.NoError(t, a.writeStructured("a\U000e0041\u202eb"))
	require.Equal(t, `"a\U000E0041\u202eb"`+"\n", out.String())
}

func TestWatchRepeatsUntilItIsInterrupted(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for format, separator := range map[string]string{"table": "\ninbox", "json": "}\n{", "yaml": "\n---\n"} {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &interrupting{at: func(text string) bool { return strings.Count(text, "gaps") == 2 }, cancel: cancel}
			var errOut bytes.Buffer
			code := run(ctx, []string{"status", "--watch", "1s", "-o", format}, system{in: strings.NewReader(""), out: out,
				errOut: &errOut, getenv: func(name string) string { return r.env[name] }})
			require.Zero(t, code, errOut.String())
			require.Empty(t, errOut.String())
			require.Contains(t, out.String(), separator)
		}
		require.Equal(t, exitFailed, runWith(t, t.Context(), map[string]string{dsnVariable: "/nowhere/x.db"}, "", "status",
			"--watch", "1s").code)
	})
}

func TestExportPrintsAllPagesOrTheFirstRows(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		var ids []string
		for i := range exportPage + 20 {
			ids = append(ids, fmt.Sprintf("m%03d", i))
		}
		r.poisoned("=cmd|x", append(ids, "=1+1")...)
		lines := strings.Split(strings.TrimSpace(r.done("list", "--state", "poisoned", "--export", "jsonl").out), "\n")
		require.Len(t, lines, len(ids)+1)
		seen := map[string]bool{}
		for _, line := range lines {
			var s map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &s))
			requireSnakeCase(t, line, s)
			seen[s["message_id"].(string)] = true
		}
		require.Len(t, seen, len(ids)+1)

		table := func(args ...string) [][]string {
			out := r.done(append([]string{"list", "--handler", failing, "--export", "csv"}, args...)...).out
			rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
			require.NoError(t, err)
			return rows
		}
		require.Len(t, table("--limit", "105"), 106)
		rows := table("--message", "=1+1")
		require.Len(t, rows, 2)
		require.Equal(t, []string{"id", "message_id", "namespace", "handler_key", "state"}, rows[0][:5])
		require.Equal(t, "'=1+1", rows[1][1], "no formula for a spreadsheet")
		require.Equal(t, failing, rows[1][3])
	})
}

func TestRejectedRecordsAreExportedWithoutTheirContent(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		for offset := range int64(exportPage + 5) {
			r.reject(offset, []byte("secret key"), []byte("secret value"))
		}
		out := r.done("rejected", "list", "--topic", "orders", "--export", "jsonl").out
		lines := splitLines(strings.TrimSpace(out))
		require.Len(t, lines, exportPage+5)
		require.NotContains(t, out, "secret")
		var first map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[0]), &first))
		requireSnakeCase(t, lines[0], first)
		require.Equal(t, "invalid character '}'", first["reason"])

		rows, err := csv.NewReader(strings.NewReader(r.done("rejected", "list", "--export", "csv", "--limit", "103").out)).ReadAll()
		require.NoError(t, err)
		require.Len(t, rows, 104)
		require.Equal(t, "id", rows[0][0])
		none := r.done("rejected", "list", "--topic", "others", "--export", "csv").out
		require.Equal(t, strings.Join(rows[0], ",")+"\n", none)
		require.Equal(t, exitMisuse, r.run("rejected", "list", "--export", "csv", "--watch", "5s").code)
		require.Equal(t, exitMisuse, r.run("rejected", "list", "--export", "xml").code)
	})
}

func TestExportCellsAreNoFormulas(t *testing.T) {
	for text, want := range map[string]string{"=1": "'=1", "+1": "'+1", "-1": "'-1", "@x": "'@x", "x": "x", "": "",
		"a=1": "a=1", "\x1b": `\x1b`} {
		shown, err := cell(plain(reflect.ValueOf(text)))
		require.NoError(t, err)
		require.Equal(t, want, shown)
	}
	shown, err := cell(-1.5)
	require.NoError(t, err)
	require.Equal(t, "-1.5", shown)
}

func TestCellsAreEscapedForSpreadsheets(t *testing.T) {
	for given, want := range map[string]string{
		`"=1+1"`:            "'=1+1",
		`"a;=1+1"`:          "a;'=1+1",
		`"a; \"=1+1"`:       `a; "'=1+1`,
		`"a|@x"`:            "a|'@x",
		`"a;b - c"`:         "a;b - c",
		`["a;=1+1","b;-2"]`: `["a;\u003d1+1","b;\u002d2"]`,
		`-5`:                "-5",
	} {
		var value any
		require.NoError(t, json.Unmarshal([]byte(given), &value))
		shown, err := cell(plain(reflect.ValueOf(value)))
		require.NoError(t, err)
		require.Equal(t, want, shown, given)
	}
}
