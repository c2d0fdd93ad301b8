package routine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/routine"
)

func TestPanicErrorNamesWhatPanicked(t *testing.T) {
	boom := errors.New("boom")
	require.NoError(t, routine.Protect("the hook", func() error { return nil }))
	require.Same(t, boom, routine.Protect("the hook", func() error { return boom }), "an error is returned as it is")
	require.Regexp(t, `^the hook panicked: no luck in routine_test\.unlucky \(protect_test\.go:\d+\) < routine_test\.Test[^ ]+ `+
		`\(protect_test\.go:\d+\)$`, routine.Protect("the hook", func() error { return unlucky("no luck") }))
	none := []int{}
	require.Regexp(t, `out of range \[0\] with length 0 in routine_test\.Test`, routine.Protect("f", func() error {
		none[0]++
		return nil
	}))
}

func unlucky(value any) error { panic(value) }

func TestPanicErrorShortensADeepStack(t *testing.T) {
	var deep func(levels int) error
	deep = func(levels int) error {
		if levels == 0 {
			panic("deep")
		}
		return deep(levels - 1)
	}
	err := routine.Protect("f", func() error { return deep(1000) })
	require.Equal(t, 7, strings.Count(err.Error(), " < "), "the eight innermost: %s", err)
}

func TestChannelIsClosedWhenTheFunctionHasReturned(t *testing.T) {
	hold := make(chan struct{})
	done := routine.Go(func() { <-hold })
	select {
	case <-done:
		require.Fail(t, "it has not returned")
	default:
	}
	close(hold)
	<-done
}
