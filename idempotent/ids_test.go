package idempotent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/idempotent"
)

func TestIDOptionsAreDistinguishedFromOthers(t *testing.T) {
	finds := func(opts ...idempotent.Option) bool {
		i, err := idempotent.Identify[envelope.Record]("h", opts...)
		require.NoError(t, err)
		return i.FindsIDs()
	}
	require.False(t, finds())
	require.False(t, finds(nil, idempotent.Configure(func(o *idempotent.Options) {
		o.Retention = 1
		o.Duplicates = idempotent.FailDuplicates
		o.Channel = "c"
		o.RequireStore = true
	})))
	for _, o := range []idempotent.Option{
		idempotent.Configure(func(o *idempotent.Options) {
			o.AllowMissingID = true
		}), idempotent.IDFrom(envelope.IDStrategy{}), idempotent.CompositeID(""),
		idempotent.KeyBy(func(envelope.Record) (string, error) { return "", nil }),
		idempotent.RecordBy(func(r envelope.Record) envelope.Record { return r }),
	} {
		require.True(t, finds(idempotent.Configure(func(o *idempotent.Options) { o.Retention = 1 }), o))
	}
}

// A message is remembered by the same key, whether the wrapper or an Identifier asks the store.
func TestIdentifierAndWrapperUseTheSameKey(t *testing.T) {
	find := idempotent.KeyBy(func(id string) (string, error) { return id, nil })
	i, err := idempotent.Identify[string]("h", find, idempotent.Configure(func(o *idempotent.Options) {
		o.Channel = "c"
		o.Retention = 5
	}))
	require.NoError(t, err)
	run, err := i.Run("1")
	require.NoError(t, err)
	require.Equal(t, idempotent.Run{Key: idempotent.Key{MessageID: "1", HandlerKey: "h", Namespace: "c"}, Retention: 5},
		run)
	var refused *idempotent.IDError
	_, err = i.Run("")
	require.ErrorAs(t, err, &refused)
	require.ErrorIs(t, err, idempotent.ErrMissingID)
	lenient, err := idempotent.Identify[string]("h", find, idempotent.Configure(func(o *idempotent.Options) {
		o.AllowMissingID = true
	}))
	require.NoError(t, err)
	run, err = lenient.Run("")
	require.NoError(t, err)
	require.Empty(t, run.Key.MessageID, "nothing can remember it")
	_, err = idempotent.Identify[string]("")
	require.ErrorContains(t, err, "has no ID")
}
