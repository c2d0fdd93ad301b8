package properties_test

import (
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
)

// maybe returns value, or nil bytes if it is missing.
func maybe(value []byte, there bool) []byte {
	if !there {
		return nil
	}
	return append([]byte{}, value...)
}

// Everything that a transport delivers is read back byte by byte (contract 3.1).
func FuzzPropertiesSurviveStorage(f *testing.F) {
	f.Add("orders", "trace", []byte("v"), true, "subject", "s", "topic", 1, int64(2), int64(3), []byte("k"), true)
	f.Add("", "\xff\x00", []byte("\xff"), true, "", "", "", 0, int64(-1), int64(-62135596800001), []byte{}, true)
	f.Add("\xff", "", []byte(nil), false, "\xfe", "\u2028<&>", "\xfd", -1, int64(1<<62), int64(1<<62), []byte(nil), false)
	f.Fuzz(func(t *testing.T, channel, name string, value []byte, hasValue bool, attribute, text, topic string,
		partition int, offset, millis int64, key []byte, hasKey bool) {
		p := handler.Properties{
			Channel: channel,
			Headers: []handler.Header{{Key: name, Value: maybe(value, hasValue)}, {Key: name},
				{Key: text, Value: []byte(text)}},
			Attributes: map[string]string{attribute: text},
			Kafka: &handler.KafkaCoordinates{Topic: topic, Partition: partition, Offset: offset,
				Timestamp: time.UnixMilli(millis).UTC(), Key: maybe(key, hasKey), Index: partition},
		}
		stored, err := properties.Serialize(p)
		storable := utf8.ValidString(channel) && utf8.ValidString(attribute) && utf8.ValidString(text) &&
			utf8.ValidString(topic)
		require.Equal(t, storable, err == nil)
		if err != nil {
			return
		}
		require.True(t, utf8.ValidString(stored))
		require.NotContains(t, stored, "\x00", "a text column refuses it")
		loaded, err := properties.Parse(stored)
		require.NoError(t, err)
		require.Equal(t, p, loaded)

		headers, err := properties.ParseHeaders(properties.SerializeHeaders(p.Headers))
		require.NoError(t, err)
		require.Equal(t, p.Headers, headers)
	})
}

// Text that another program wrote into the column is either an error or understood. What was
// understood is stored and read back the same.
func FuzzParse(f *testing.F) {
	f.Add(`{"channel":"c","headers":[{"k":"a","v":"b"},{"kb":"/w==","b":"/w=="},{"k":""}],"attributes":{"x":"y"},"kafka":{"topic":"t","partition":1,"offset":2,"timestamp_ms":3,"key":{}}}`)
	f.Add(`{"headers":[{}]}`)
	f.Add(`{"kafka":{"timestamp_ms":9223372036854775807,"key":{"v":"","b":"AA=="}}}`)
	f.Add(`null`)
	f.Add(`{"headers":[{"k":"\ud800","v":null,"b":""}],"attributes":{}}`)
	f.Fuzz(func(t *testing.T, stored string) {
		if headers, err := properties.ParseHeaders(stored); err == nil {
			again, err := properties.ParseHeaders(properties.SerializeHeaders(headers))
			require.NoError(t, err)
			require.Equal(t, headers, again)
		}
		p, err := properties.Parse(stored)
		if err != nil {
			require.Zero(t, p)
			return
		}
		written, err := properties.Serialize(p)
		require.NoError(t, err)
		again, err := properties.Parse(written)
		require.NoError(t, err)
		if len(p.Attributes) == 0 { // an empty map and no map are the same
			p.Attributes = nil
		}
		require.Equal(t, p, again)
	})
}
