package envelope_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
)

// TestTimeComesFromHeaderAttributeOrFunction proves contract 4.8.
func TestTimeComesFromHeaderAttributeOrFunction(t *testing.T) {
	at := time.Date(2026, 5, 6, 7, 8, 9, 123000000, time.UTC)
	cfg := envelope.DecoderConfig{Type: "t", NotBeforeHeader: "notbefore"}
	for text, expected := range map[string]time.Time{
		"2026-05-06T07:08:09.123Z":      at,
		"2026-05-06T09:08:09.123+02:00": at,
		"2026-05-06T07:08:09.123456Z":   at.Add(456 * time.Microsecond),
		"1778051289123":                 at,
		"0":                             time.UnixMilli(0),
		"":                              {},
	} {
		require.True(t, expected.Equal(message(t, cfg, record("", "NotBefore", text)).NotBefore), text)
	}
	require.Zero(t, message(t, cfg, record("")).NotBefore)
	require.Zero(t, message(t, envelope.DecoderConfig{Type: "t"}, record("", "notbefore", "nonsense")).NotBefore)

	events := `[{"specversion":"1.0","id":"1","source":"/s","type":"t","notbefore":"2026-05-06T07:08:09.123Z"},
		{"specversion":"1.0","id":"2","source":"/s","type":"t"},{"specversion":"1.0","id":"3","source":"/s","type":"t","notbefore":1778051289123}]`
	batch := record(events, "content-type", "application/cloudevents-batch+json", "notbefore", "2026-01-01T00:00:00Z")
	received := decoder(t, cfg).Decode(channel, batch)
	require.NoError(t, received.Err)
	require.True(t, at.Equal(received.Messages[0].NotBefore))
	require.True(t, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Equal(received.Messages[1].NotBefore), "the record's")
	require.True(t, at.Equal(received.Messages[2].NotBefore))

	own := envelope.DecoderConfig{Type: "t", NotBefore: func(in envelope.IDInput) (time.Time, error) {
		return in.Record.Timestamp.Add(time.Hour), nil
	}}
	r := record("")
	require.True(t, r.Timestamp.Add(time.Hour).Equal(message(t, own, r).NotBefore))
}

func TestUnusableTimeMakesABadRecord(t *testing.T) {
	for _, text := range []string{"tomorrow", "2026-05-06", "2026-05-06 07:08:09Z", "1778051289.5", " 1778051289123", "-", "99999999999999999999"} {
		received := decoder(t, envelope.DecoderConfig{Type: "t", NotBeforeHeader: "not-before"}).Decode(channel,
			record("", "MessageId", "1", "not-before", text))
		require.ErrorContains(t, received.Err, `header or attribute "not-before" (option Decoder.NotBeforeHeader) is "`+text+`": must be an RFC 3339 timestamp or Unix milliseconds`)
		require.Empty(t, received.Messages)
	}
	errClock := errors.New("no clock")
	for name, cfg := range map[string]envelope.DecoderConfig{
		"error": {Type: "t", NotBefore: func(envelope.IDInput) (time.Time, error) { return time.Time{}, errClock }},
		"panic": {Type: "t", NotBefore: func(envelope.IDInput) (time.Time, error) { panic("no clock") }},
	} {
		received := decoder(t, cfg).Decode(channel, record(""))
		require.ErrorContains(t, received.Err, "no clock", name)
	}
	_, err := envelope.NewDecoder(envelope.DecoderConfig{NotBeforeHeader: "h",
		NotBefore: func(envelope.IDInput) (time.Time, error) { return time.Time{}, nil }}, nil)
	require.EqualError(t, err, `option Decoder.NotBeforeHeader = "h": must be empty with Decoder.NotBefore`)
}
