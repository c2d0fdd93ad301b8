package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/gorm-inbox/inbox/ops"
)

const formatHelp = `With -o json each command prints one JSON value, with -o yaml the same as YAML. The
help of each command names its Go type: "inboxctl list" prints an ops.Page of
ops.Status, "inboxctl show" an ops.Message and so on, as
https://pkg.go.dev/github.com/gorm-inbox/inbox/ops documents them. Names are in
snake_case: HandlerKey is handler_key. Fields may be added; none is renamed or
removed within a major version.

  times      RFC 3339 in UTC, such as "2026-01-02T03:04:05.678Z"; null for none
  durations  seconds, such as 192.5
  counts     numbers; where counting stopped early, a member such as
             "poisoned_capped": true says that there may be more; null if the
             database did not count in time
  bytes      {"text": "…"} if they are valid UTF-8, else {"base64": "…"}; null
             for none; {"hidden": true, "size": 123} for a payload without
             --show-payload
  lists      [] if empty, never null

Characters that a terminal would interpret are escaped as \u001b and the like. Any
reader of JSON or YAML returns them unchanged.`

// structured reports whether results are printed for programs.
func (a *app) structured() bool { return a.output != "table" }

// writeStructured prints a value in the format that formatHelp documents.
func (a *app) writeStructured(v any) error {
	var shown []byte
	var err error
	if v := plain(reflect.ValueOf(v)); a.output == "yaml" {
		shown, err = asYAML(v)
	} else {
		shown, err = asJSON(v, "  ")
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", a.output, err)
	}
	_, err = a.out.Write(shown)
	return err
}

// asJSON returns a result of plain as JSON and a line feed. Without an indent it is one line.
func asJSON(v any, indent string) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(v)
	return escapeUnprintable(out.Bytes()), err
}

// asYAML returns a result of plain as YAML. Only quoted texts have characters to escape, and Go's escapes are YAML's.
func asYAML(v any) ([]byte, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := encoder.Encode(v)
	lines := strings.Split(out.String(), "\n")
	for i, line := range lines {
		lines[i] = oneLine(line)
	}
	return []byte(strings.Join(lines, "\n")), err
}

// text is a string. In YAML it is quoted if asYAML has to escape some of it.
type text string

// MarshalYAML implements yaml.Marshaler.
func (t text) MarshalYAML() (any, error) {
	valid := string([]rune(string(t))) // as JSON shows it
	if strings.ContainsFunc(valid, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return &yaml.Node{Kind: yaml.ScalarNode, Value: valid, Style: yaml.DoubleQuotedStyle}, nil
	}
	return valid, nil
}

// seconds is a duration. In YAML it is written as in JSON: not all readers take 1e+06 for a number.
type seconds float64

// MarshalYAML implements yaml.Marshaler.
func (s seconds) MarshalYAML() (any, error) {
	value, err := json.Marshal(float64(s))
	return &yaml.Node{Kind: yaml.ScalarNode, Value: string(value)}, err
}

// hidden replaces a payload that is not shown.
type hidden struct {
	Hidden bool
	Size   int
}

// plain returns a value in the form that encoding/json and the YAML library print as formatHelp documents.
func plain(v reflect.Value) any {
	if !v.IsValid() {
		return nil
	}
	switch value := v.Interface().(type) {
	case time.Time:
		if value.IsZero() {
			return nil
		}
		return text(value.UTC().Format(time.RFC3339Nano))
	case time.Duration:
		return seconds(value.Seconds())
	case []byte:
		switch {
		case value == nil:
			return nil
		case utf8.Valid(value):
			return map[text]any{"text": text(value)}
		}
		return map[text]any{"base64": base64.StdEncoding.EncodeToString(value)}
	case ops.Count:
		if value.Unknown {
			return nil
		}
		return value.N
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return plain(v.Elem()) // invalid for nil, and so null
	case reflect.Struct:
		return plainStruct(v)
	case reflect.Slice, reflect.Array:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plain(v.Index(i))
		}
		return list
	case reflect.Map:
		members := map[text]any{} // keys are data, such as the names of attributes
		for name, value := range v.Seq2() {
			members[text(name.String())] = plain(value)
		}
		return members
	case reflect.String:
		return text(v.String())
	}
	return v.Interface()
}

// nameOf returns the name of a field in JSON. All output gets its names here.
func nameOf(field reflect.StructField) string {
	name := strings.ReplaceAll(field.Name, "IDs", "Ids")
	return strings.ToLower(wordStarts.ReplaceAllString(name, "${1}${3}_${2}${4}"))
}

// wordStarts finds where words begin: at capitals after a small letter or digit, at the last of several before one.
var wordStarts = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

// plainStruct returns a struct with the same members in the same order, tagged with the names that formatHelp
// documents. The fields of embedded structs become its own, as in encoding/json.
func plainStruct(v reflect.Value) any {
	var fields []reflect.StructField
	var values []any
	member := func(name string, value any) {
		fields = append(fields, reflect.StructField{Name: fmt.Sprintf("F%d", len(fields)), Type: reflect.TypeFor[any](),
			Tag: reflect.StructTag(fmt.Sprintf("json:%q yaml:%q", name, name))})
		values = append(values, value)
	}
	for _, field := range reflect.VisibleFields(v.Type()) {
		if !field.IsExported() || field.Anonymous {
			continue
		}
		value := v.FieldByIndex(field.Index)
		if strings.HasSuffix(field.Tag.Get("json"), ",omitzero") && value.IsZero() {
			continue // known only to a running application
		}
		member(nameOf(field), plain(value))
		if count, ok := value.Interface().(ops.Count); ok && count.Capped {
			member(nameOf(field)+"_capped", true)
		}
	}
	tagged := reflect.New(reflect.StructOf(fields)).Elem()
	for i, value := range values {
		if value != nil {
			tagged.Field(i).Set(reflect.ValueOf(value))
		}
	}
	return tagged.Interface()
}

// escapeUnprintable escapes what a terminal might act on. Outside of strings, JSON has only line ends of this kind.
func escapeUnprintable(text []byte) []byte {
	var out bytes.Buffer
	for _, r := range string(text) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.Bytes()
}
