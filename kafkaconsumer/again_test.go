package kafkaconsumer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
)

// TestProducersCannotMakeAResultLarge: producers choose message types, and the result is stored.
func TestProducersCannotMakeAResultLarge(t *testing.T) {
	a := &rereader{}
	for i := range 3 * maxTypes {
		a.countType(fmt.Sprint(i/2), handler.OutcomeAccepted)
		a.countType("invalid", handler.OutcomeInvalid)
	}
	require.Len(t, a.result.ByType, maxTypes+1)
	require.Equal(t, envelope.TypeCounts{Accepted: 2}, a.result.ByType["49"])
	require.Equal(t, envelope.TypeCounts{Accepted: maxTypes}, a.result.ByType[envelope.OtherTypes])
}
