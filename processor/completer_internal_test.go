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
	claim := store.Claim{Message: message}
	c := newCompleter(&shared{opts: DefaultOptions()})
	c.add(result{task: &task{claim: claim}})
	require.Zero(t, c.queue[0].Size())
	require.Equal(t, &models.Message{Type: "t", TransportName: "kafka"}, c.queue[0].claim.Message, "logs and hooks need them")
	require.NotEmpty(t, message.Content, "it belongs to the claims of other handlers, too")
}
