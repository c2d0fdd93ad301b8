package processor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

// TestUnstoredResultsKeepNoContent proves contract 5.2: results may wait for as long as the
// database fails.
func TestUnstoredResultsKeepNoContent(t *testing.T) {
	message := &models.Message{Type: "t", TransportName: "kafka", Content: []byte("large"), SerializedProperties: "{}"}
	c := newCompleter(&shared{opts: DefaultOptions()})
	c.add(result{task: newTask(store.Claim{Message: message}, nil, &policy{})})
	require.Zero(t, c.queue[0].Size())
	require.Nil(t, c.queue[0].claim.Message)
	require.Equal(t, []string{"t", "kafka"}, []string{c.queue[0].messageType, c.queue[0].transport}, "logs and hooks need them")
	require.NotEmpty(t, message.Content, "it belongs to the claims of other handlers, too")
}
