package routine_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/routine"
)

func TestPanicIsAnErrorThatSaysWhatPanicked(t *testing.T) {
	boom := errors.New("boom")
	require.NoError(t, routine.Protect("the hook", func() error { return nil }))
	require.Same(t, boom, routine.Protect("the hook", func() error { return boom }), "an error is returned as it is")
	require.EqualError(t, routine.Protect("the hook", func() error { panic("no luck") }), "the hook panicked: no luck")
}
