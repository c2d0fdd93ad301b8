package properties_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
)

// Contract 15: a seal is read back, and everything beside it as if there were none.
func TestSealSurvivesStorageBesideProperties(t *testing.T) {
	for _, p := range []handler.Properties{{}, {Channel: "c"},
		{Channel: "c", Attributes: map[string]string{"sealed": `"k"`, "a": "}"}, Traceparent: "t"}} {
		for _, seal := range []properties.Seal{{}, {Key: "k1", SHA256: []byte{0, 0xff}}, {Key: `"}<&\u2028é`}} {
			stored, err := properties.Serialize(p)
			require.NoError(t, err)
			loaded, loadedSeal, err := properties.ParseSealed(seal.AddTo(stored))
			require.NoError(t, err, stored)
			require.Equal(t, p, loaded)
			require.Equal(t, seal, loadedSeal)
			require.Equal(t, p.Channel, properties.Channel(seal.AddTo(stored)), "it stays the first member")
		}
	}
}

// Contract 15.
func TestSealSurvivesStorageBesideRejectedHeaders(t *testing.T) {
	headers := []handler.Header{{Key: "sealed", Value: []byte("<v>")}, {Key: "\xff"}}
	cut := properties.CutError{ValueBytes: 5, SHA256: "ab"}
	for _, seal := range []properties.Seal{{}, {Key: `k"1`}} {
		read, err := properties.ParseHeaders(seal.AddToRejected(properties.SerializeHeaders(headers)))
		require.NoError(t, err)
		require.Equal(t, headers, read)
		raw, is, err := properties.RawHeaders(seal.AddToRejected(properties.SerializeRawHeaders([]byte{0, 1})))
		require.NoError(t, err)
		require.True(t, is)
		require.Equal(t, []byte{0, 1}, raw)
		stored := seal.AddToRejected(properties.SerializeCut(cut))
		require.Equal(t, &cut, properties.Cut(stored))
		_, read2 := properties.SealOfRejected(stored)
		require.Equal(t, seal, read2)
	}
}
