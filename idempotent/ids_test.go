package idempotent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/idempotent"
)

func TestOptionsAboutIDsAreToldFromOthers(t *testing.T) {
	require.False(t, idempotent.FindsIDs())
	require.False(t, idempotent.FindsIDs(nil, idempotent.Retention(1), idempotent.Duplicates(idempotent.FailDuplicates), idempotent.Channel("c"), idempotent.RequireStore()))
	for _, o := range []idempotent.Option{
		idempotent.AllowMissingID(), idempotent.IDFrom(envelope.IDStrategy{}), idempotent.CompositeID(""),
		idempotent.KeyBy(func(string) (string, error) { return "", nil }), idempotent.RecordBy(func(string) envelope.Record { return envelope.Record{} }),
	} {
		require.True(t, idempotent.FindsIDs(idempotent.Retention(1), o))
	}
}
