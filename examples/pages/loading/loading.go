// Package loading is the code of docs/options.md: an inbox's options from a file or the environment.
package loading

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"
	"gopkg.in/yaml.v3"

	"github.com/gorm-inbox/inbox"
)

func fromYAML(file io.Reader) (inbox.Options, error) {
	o := inbox.DefaultOptions()
	decoder := yaml.NewDecoder(file)
	decoder.KnownFields(true) // a key that no option has is an error
	err := decoder.Decode(&o)
	return o, err
}

func fromEnvironment() (inbox.Options, error) {
	o, opts := inbox.DefaultOptions(), env.Options{Prefix: "ORDERS_INBOX_"}
	known, err := env.GetFieldParamsWithOptions(&o, opts)
	if err != nil {
		return o, err
	}
	for _, variable := range os.Environ() {
		key, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(key, opts.Prefix) &&
			!slices.ContainsFunc(known, func(p env.FieldParams) bool { return p.Key == key }) {
			return o, fmt.Errorf("%s: no option has this key", key)
		}
	}
	err = env.ParseWithOptions(&o, opts)
	return o, err
}
