package settings_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/settings"
)

type options struct {
	Retries int         `yaml:"retries"`
	Logger  *string     `yaml:"-"`
	Hooks   []func()    `yaml:"-"`
	Mode    interface{} `yaml:"-"`
}

func TestLoadingKeepsCodeOnlyFields(t *testing.T) {
	first, second := "first", "second"
	before := options{Retries: 5, Logger: &first, Hooks: []func(){func() {}}, Mode: 1}
	after := options{Retries: 0}
	settings.Keep(before, &after)
	require.Zero(t, after.Retries, "a file can say 0")
	require.Equal(t, &first, after.Logger)
	require.Len(t, after.Hooks, 1)
	require.Equal(t, 1, after.Mode)

	after = options{Logger: &second, Mode: 2}
	settings.Keep(before, &after)
	require.Equal(t, &second, after.Logger, "what is set is not touched")
	require.Equal(t, 2, after.Mode)
}

func TestWithAppliesFunctionsInOrderAndSkipsNil(t *testing.T) {
	double := func(o *options) { o.Retries *= 2 }
	changed := settings.With(options{Retries: 2}, []func(*options){nil, func(o *options) { o.Retries++ }, double})
	require.Equal(t, 6, changed.Retries)
	require.Equal(t, 2, settings.With[options, func(*options)](options{Retries: 2}, nil).Retries)
}
