package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

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
             "poisoned_capped": true says that there may be more
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
	var compact, shown bytes.Buffer
	if err := encode(&compact, reflect.ValueOf(v)); err != nil {
		return fmt.Errorf("print as %s: %w", a.output, err)
	}
	var err error
	if a.output == "yaml" {
		in := json.NewDecoder(bytes.NewReader(compact.Bytes()))
		in.UseNumber()
		err = writeYAML(&shown, in, "", false)
	} else if err = json.Indent(&shown, compact.Bytes(), "", "  "); err == nil {
		shown = *bytes.NewBuffer(append(escapeUnprintable(shown.Bytes()), '\n'))
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", a.output, err)
	}
	_, err = a.out.Write(shown.Bytes())
	return err
}

// hidden replaces a payload that is not shown.
type hidden struct {
	Hidden bool
	Size   int
}

func encode(out *bytes.Buffer, v reflect.Value) error {
	if !v.IsValid() {
		out.WriteString("null")
		return nil
	}
	switch value := v.Interface().(type) {
	case time.Time:
		return encodeTime(out, value)
	case time.Duration:
		return encodePlain(out, value.Seconds())
	case []byte:
		return encodeBytes(out, value)
	case ops.Count:
		return encodePlain(out, value.N)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return encode(out, v.Elem()) // invalid for nil, and so null
	case reflect.Struct:
		return encodeStruct(out, v)
	case reflect.Slice, reflect.Array:
		return encodeList(out, v)
	case reflect.Map:
		return encodeMap(out, v)
	case reflect.Chan, reflect.Func, reflect.UnsafePointer:
		return fmt.Errorf("a %s has no JSON", v.Type())
	}
	return encodePlain(out, v.Interface())
}

func encodePlain(out *bytes.Buffer, v any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	out.Write(bytes.TrimRight(text.Bytes(), "\n"))
	return nil
}

func encodeTime(out *bytes.Buffer, t time.Time) error {
	if t.IsZero() {
		out.WriteString("null")
		return nil
	}
	return encodePlain(out, t.UTC().Format(time.RFC3339Nano))
}

func encodeBytes(out *bytes.Buffer, b []byte) error {
	switch {
	case b == nil:
		out.WriteString("null")
		return nil
	case utf8.Valid(b):
		return encode(out, reflect.ValueOf(struct{ Text string }{string(b)}))
	}
	out.WriteString(`{"base64":`)
	if err := encodePlain(out, b); err != nil {
		return err
	}
	out.WriteString(`}`)
	return nil
}

// nameOf returns the name of a field in JSON. All output gets its names here.
func nameOf(field reflect.StructField) string {
	name := strings.ReplaceAll(field.Name, "IDs", "Ids")
	return strings.ToLower(wordStarts.ReplaceAllString(name, "${1}${3}_${2}${4}"))
}

// wordStarts finds where a word begins: a capital after a small letter or digit, and the last
// capital of several before a small letter.
var wordStarts = regexp.MustCompile(`([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])`)

// encodeStruct encodes the fields of embedded structs as its own, as encoding/json does.
func encodeStruct(out *bytes.Buffer, v reflect.Value) error {
	out.WriteByte('{')
	first := true
	member := func(name string, value reflect.Value) error {
		if !first {
			out.WriteByte(',')
		}
		first = false
		if err := encodePlain(out, name); err != nil {
			return err
		}
		out.WriteByte(':')
		if err := encode(out, value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	for _, field := range reflect.VisibleFields(v.Type()) {
		if !field.IsExported() || field.Anonymous {
			continue
		}
		value := v.FieldByIndex(field.Index)
		if strings.HasSuffix(field.Tag.Get("json"), ",omitzero") && value.IsZero() {
			continue // known only to a running application
		}
		name := nameOf(field)
		if err := member(name, value); err != nil {
			return err
		}
		if count, ok := value.Interface().(ops.Count); ok && count.Capped {
			if err := member(name+"_capped", reflect.ValueOf(true)); err != nil {
				return err
			}
		}
	}
	out.WriteByte('}')
	return nil
}

func encodeList(out *bytes.Buffer, v reflect.Value) error {
	out.WriteByte('[')
	for i := range v.Len() {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := encode(out, v.Index(i)); err != nil {
			return err
		}
	}
	out.WriteByte(']')
	return nil
}

// encodeMap encodes a map, whose keys are data, such as the names of attributes.
func encodeMap(out *bytes.Buffer, v reflect.Value) error {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	out.WriteByte('{')
	for i, key := range keys {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := encodePlain(out, key.String()); err != nil {
			return err
		}
		out.WriteByte(':')
		if err := encode(out, v.MapIndex(key)); err != nil {
			return err
		}
	}
	out.WriteByte('}')
	return nil
}

// escapeUnprintable escapes characters that a terminal might act on. Outside of strings, JSON has
// no such characters except line ends.
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

// writeYAML writes the next JSON value as YAML, in lines that begin with indent. In a list, the
// first line of an object follows its dash.
func writeYAML(out *bytes.Buffer, in *json.Decoder, indent string, listed bool) error {
	token, err := in.Token()
	if err != nil {
		return err
	}
	delimiter, ok := token.(json.Delim)
	if !ok {
		fmt.Fprintf(out, "%s\n", yamlScalar(token))
		return nil
	}
	if !in.More() {
		fmt.Fprintln(out, map[json.Delim]string{'[': "[]", '{': "{}"}[delimiter])
		_, err := in.Token()
		return err
	}
	if indent != "" && !listed {
		out.WriteByte('\n')
	}
	for first := true; in.More(); first = false {
		if !first || !listed {
			out.WriteString(indent)
		}
		if delimiter == '[' {
			out.WriteString("- ")
			if err := writeYAML(out, in, indent+"  ", true); err != nil {
				return err
			}
			continue
		}
		name, err := in.Token()
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: ", yamlScalar(name))
		if err := writeYAML(out, in, indent+"  ", false); err != nil {
			return err
		}
	}
	_, err = in.Token()
	return err
}

// plainYAML matches texts that YAML reads as the same text without quotes, apart from yamlWords.
var plainYAML = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]*$`)

var yamlWords = []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}

// yamlScalar formats a value. Text in double quotes has JSON's escapes, which YAML has too.
func yamlScalar(token json.Token) string {
	switch token := token.(type) {
	case nil:
		return "null"
	case string:
		if plainYAML.MatchString(token) && !slices.Contains(yamlWords, strings.ToLower(token)) {
			return token
		}
		var quoted, shown bytes.Buffer
		_ = encodePlain(&quoted, token) // a string can always be encoded
		for _, r := range quoted.String() {
			switch {
			case unicode.IsPrint(r):
				shown.WriteRune(r)
			case r > 0xffff:
				fmt.Fprintf(&shown, `\U%08x`, r)
			default:
				fmt.Fprintf(&shown, `\u%04x`, r)
			}
		}
		return shown.String()
	}
	return fmt.Sprint(token)
}
