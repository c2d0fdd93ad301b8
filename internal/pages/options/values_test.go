package options

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox"
)

// value is what can be said of an option that is a field of inbox.Options.
type value struct {
	name, path, key string // path is "Processor.MaxRetries"
	byDefault       string
	allowed         []string
}

// values are all fields of inbox.Options, flat, in their order.
func values() []value {
	var all []value
	walk(reflect.ValueOf(inbox.DefaultOptions()), nil,
		func(path []int, field reflect.StructField, byDefault reflect.Value) {
			key := field.Tag.Get("yaml")
			if key == "-" {
				return
			}
			all = append(all, value{field.Name, pathOf(path), key, format(byDefault), refusals(path, field)})
		})
	return all
}

// pathOf names a field of inbox.Options by the fields on the way to it.
func pathOf(index []int) string {
	var names []string
	typ := reflect.TypeFor[inbox.Options]()
	for _, i := range index {
		names = append(names, typ.Field(i).Name)
		typ = typ.Field(i).Type
	}
	return strings.Join(names, ".")
}

func walk(v reflect.Value, path []int, visit func(path []int, field reflect.StructField, v reflect.Value)) {
	for i := range v.NumField() {
		at := append(slices.Clone(path), i)
		if field := v.Type().Field(i); strings.HasSuffix(field.Tag.Get("yaml"), ",inline") {
			walk(v.Field(i), at, visit)
		} else {
			visit(at, field, v.Field(i))
		}
	}
}

// unit is a zero behind another unit: 5m0s is 5m.
var unit = regexp.MustCompile(`([hm])0[ms](?:0s)?$`)

func format(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		if value == 0 {
			return "0"
		}
		return unit.ReplaceAllString(value.String(), "$1")
	case bool:
		if value {
			return "on"
		}
		return "off"
	case int:
		return strconv.Itoa(value)
	case float64:
		return strconv.FormatFloat(value, 'g', -1, 64)
	}
	if v.Kind() == reflect.String {
		return strings.TrimSpace(v.String())
	}
	return ""
}

var (
	allowed   = regexp.MustCompile(`must be (.*)`)
	zeros     = regexp.MustCompile(`(\d[hm])0[ms](?:0s)?\b`)
	inBetween = regexp.MustCompile(` \([0-9hms.]+\)`)
)

// refusals asks the options themselves: it gives one field values that may be
// wrong, and takes what the errors say is allowed.
func refusals(path []int, field reflect.StructField) []string {
	var found []string
	for _, wrong := range candidates(field.Type) {
		o := inbox.DefaultOptions()
		o.Processor.HandlerTimeout = time.Minute // for what depends on it
		if field.Name == "HandlerTimeout" {
			o.Processor.HandlerTimeout = 0
		}
		reflect.ValueOf(&o).Elem().FieldByIndex(path).Set(wrong)
		err := o.Validate()
		if err == nil {
			continue
		}
		for _, line := range strings.Split(err.Error(), "\n") {
			about := strings.HasPrefix(line, "option "+field.Name+" = ")
			if said := allowed.FindStringSubmatch(line); about && said != nil {
				text := zeros.ReplaceAllString(inBetween.ReplaceAllString(said[1], ""), "$1")
				if !slices.Contains(found, text) {
					found = append(found, text)
				}
			}
		}
	}
	return found
}

func candidates(t reflect.Type) []reflect.Value {
	var wrong []reflect.Value
	switch t.Kind() {
	case reflect.Float64:
		for _, f := range []float64{-1, 1_000} {
			wrong = append(wrong, reflect.ValueOf(f))
		}
	case reflect.Int, reflect.Int64:
		for _, n := range []int64{-1_000, 0, 1} {
			wrong = append(wrong, reflect.ValueOf(n).Convert(t))
		}
	case reflect.String:
		wrong = append(wrong, reflect.ValueOf("no such thing, "+strings.Repeat("x", 300)).Convert(t))
	}
	return wrong
}

// fieldDefault is a default of a config, as text; empty if it has none.
func fieldDefault(config any, names string) string {
	var texts []string
	for _, name := range strings.Split(names, ", ") {
		v := reflect.ValueOf(config).FieldByName(name)
		if !v.IsValid() || v.IsZero() {
			continue
		}
		text := format(v)
		if n, ok := v.Interface().(int); ok && n >= 1<<20 && n%(1<<20) == 0 {
			text = fmt.Sprintf("%d MiB", n>>20)
		}
		if text != "" {
			texts = append(texts, "`"+text+"`")
		}
	}
	return strings.Join(texts, ", ")
}
