package ops_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// TestMarkersShowWhichHandlersProcessedAMessage proves contract 11.1.
func TestMarkersShowWhichHandlersProcessedAMessage(t *testing.T) {
	onEach(t, func(t *testing.T, r *rig) {
		mark := func(id, handlerKey, namespace string) models.Marker {
			m := models.Marker{MessageID: id, HandlerKey: handlerKey, Namespace: namespace, MessageType: "order.placed",
				ProcessedAt: inboxtest.Noon, ExpiresAt: inboxtest.Noon.Add(24 * time.Hour)}
			require.NoError(t, r.d.DB.Create(&m).Error)
			return m
		}
		shipped := mark("m1", "ship", "orders")
		billed := mark("m1", "bill", "orders")
		elsewhere := mark("m1", "bill", "returns")
		mark("m10", "bill", "orders")
		find := func(id, handlerKey, namespace string) []models.Marker {
			found, err := r.ops.Markers(t.Context(), id, handlerKey, namespace)
			require.NoError(t, err)
			return found
		}
		require.Equal(t, []models.Marker{billed, elsewhere, shipped}, find("m1", "", ""))
		require.Equal(t, []models.Marker{billed, elsewhere}, find("m1", "bill", ""))
		require.Equal(t, []models.Marker{billed, shipped}, find("m1", "", "orders"))
		require.Equal(t, []models.Marker{elsewhere}, find("m1", "bill", "returns"))
		require.Empty(t, find("m2", "", ""))
		require.Empty(t, r.audit(), "they are a list")

		for _, arguments := range [][3]string{{""}, {"m\x00"}, {strings.Repeat("x", 201)}, {"m1", "\xff"}, {"m1", "", "\x00"}} {
			_, err := r.ops.Markers(t.Context(), arguments[0], arguments[1], arguments[2])
			require.ErrorIs(t, err, ops.ErrBadInput, "%q", arguments)
		}
	})
}
