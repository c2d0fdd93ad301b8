package servers

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoPortIsGivenOutTwice(t *testing.T) {
	given := map[int]bool{}
	for range 500 {
		port, err := freePort()
		require.NoError(t, err)
		require.False(t, given[port], port)
		given[port] = true
	}
}
