package problems_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/problems"
)

func TestEachPartOfAJoinedErrorGetsThePrefix(t *testing.T) {
	one, two := errors.New("one"), fmt.Errorf("two: %w", io.EOF)
	both := fmt.Errorf("%w beside %w", one, io.ErrClosedPipe)
	err := problems.Prefix(`inbox "a": `, errors.Join(errors.Join(one, two), both))
	require.EqualError(t, err,
		"inbox \"a\": one\ninbox \"a\": two: EOF\ninbox \"a\": one beside io: read/write on closed pipe")
	for _, part := range []error{one, io.EOF, io.ErrClosedPipe} {
		require.ErrorIs(t, err, part)
	}
	require.NoError(t, problems.Prefix("a", nil))
	require.EqualError(t, problems.Prefix("a: ", one), "a: one")
}
