package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const jsonHelp = `With -o json each command prints one JSON value. Its fields have the names of the
Go API: "inboxctl list" prints an ops.Page of ops.Status, "inboxctl show" an
ops.Message and so on, as https://pkg.go.dev/github.com/gorm-inbox/inbox/ops
documents them. The name of the type is in the help of each command. Fields may be
added; none is renamed or removed within a major version.

  times      RFC 3339 in UTC, such as "2026-01-02T03:04:05.678Z"; null for none
  durations  seconds, such as 192.5
  bytes      {"Text": "…"} if they are valid UTF-8, else {"Base64": "…"}; null
             for none; {"Hidden": true, "Size": 123} for a payload without
             --show-payload
  lists      [] if empty, never null

Characters that a terminal would interpret are escaped as \u001b and the like. Any
JSON reader returns them unchanged.`

// writeJSON prints a value in the format that jsonHelp documents.
func writeJSON(w io.Writer, v any) error {
	var compact, indented bytes.Buffer
	if err := encode(&compact, reflect.ValueOf(v)); err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	if err := json.Indent(&indented, compact.Bytes(), "", "  "); err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	_, err := fmt.Fprintf(w, "%s\n", escapeUnprintable(indented.Bytes()))
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
	out.WriteString(`{"Base64":`)
	if err := encodePlain(out, b); err != nil {
		return err
	}
	out.WriteString(`}`)
	return nil
}

// encodeStruct encodes the fields of embedded structs as its own, as encoding/json does.
func encodeStruct(out *bytes.Buffer, v reflect.Value) error {
	out.WriteByte('{')
	first := true
	for _, field := range reflect.VisibleFields(v.Type()) {
		if !field.IsExported() || field.Anonymous {
			continue
		}
		if strings.HasSuffix(field.Tag.Get("json"), ",omitzero") && v.FieldByIndex(field.Index).IsZero() {
			continue // known only to a running application
		}
		if !first {
			out.WriteByte(',')
		}
		first = false
		if err := encodePlain(out, field.Name); err != nil {
			return err
		}
		out.WriteByte(':')
		if err := encode(out, v.FieldByIndex(field.Index)); err != nil {
			return fmt.Errorf("%s: %w", field.Name, err)
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
