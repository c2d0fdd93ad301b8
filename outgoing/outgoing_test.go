package outgoing_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/outgoing"
)

func TestRefusedErrorIsFoundAndNamesItsReason(t *testing.T) {
	require.NoError(t, outgoing.Refused(nil))
	err := fmt.Errorf("publish: %w", outgoing.Refused(io.ErrShortBuffer))
	var refused *outgoing.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, io.ErrShortBuffer, refused.Err)
	require.ErrorIs(t, err, io.ErrShortBuffer)
	require.EqualError(t, err, "publish: refused permanently: short buffer")
}
