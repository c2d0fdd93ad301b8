package properties

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
)

// FuzzScannedPropertiesAreTheDecodedOnes checks that encoding/json reads the same as scanProperties
// wherever that succeeds.
func FuzzScannedPropertiesAreTheDecodedOnes(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"channel":"c"}`, `{"channel":"ä€"}`, `{"channel":"a\"b"}`, `{"channel":"a","channel":"b"}`, `{"Channel":"x"}`,
		`{"channel":null}`, "{\"channel\":\"\xff\"}",
		`{"channel":"c","headers":[{"k":"ce_id","v":"1"},{"k":"x"},{"k":"","v":""}],"attributes":{"a":"b","":""}}`,
		`{"headers":[{"v":"1"}]}`, `{"headers":[]}`, `{"headers":[{"kb":"/w=="}]}`,
		`{"kafka":{"topic":"t","partition":3,"offset":-12,"timestamp_ms":1767355200123,"key":{"v":"k"},"tombstone":true}}`,
		`{"kafka":{"topic":"t","index":7}}`, `{"kafka":{"index":0}}`, `{"kafka":{"index":1.5}}`,
		`{"kafka":{"topic":"t","partition":0,"offset":01}}`, `{"kafka":{"offset":1e3}}`, `{"kafka":{"offset":-0}}`,
		`{"kafka":{"key":{}}}`, `{"kafka":{"tombstone":false}}`, `{"kafka":{"offset":9223372036854775808}}`,
		`{"kafka":{}}`, `{"attributes":{}}`, `{"channel":"c"}}`, `{"channel":"c",}`, ` {"channel":"c"}`, `{"channel" :"c"}`,
		`{"kafka":{"offset":1_0}}`, `{"kafka":{"offset":+1}}`,
		`{"sealed":{"key":"k","sha256":"AAEC"}}`, `{"sealed":{"key":"","sha256":""}}`, `{"sealed":{}}`, `{"sealed":null}`,
		`{"sealed":{"sha256":"AAE"}}`, `{"sealed":{"sha256":"AAF="}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, serialized string) {
		scanned, scannedSeal, ok := scanProperties(serialized)
		if !ok {
			return
		}
		decoded, decodedSeal, err := decodeProperties(serialized)
		require.NoError(t, err, serialized)
		require.Equal(t, decoded, scanned, serialized)
		require.Equal(t, decodedSeal, scannedSeal, serialized)
	})
}

func TestPlainTextPropertiesAreScannedWithoutDecoding(t *testing.T) {
	p := handler.Properties{Channel: "orders", Headers: []handler.Header{{Key: "ce_id", Value: []byte("1")},
		{Key: "empty", Value: []byte{}}, {Key: "nil"}},
		Attributes: map[string]string{"traceparent": "00-1"},
		Kafka: &handler.KafkaCoordinates{Topic: "t", Partition: 3, Offset: 12, Timestamp: time.UnixMilli(1767355200123).UTC(),
			Key: []byte("k"), Tombstone: true, Index: 7}}
	serialized, err := Serialize(p)
	require.NoError(t, err)
	seal := Seal{Key: "k1", SHA256: []byte{1, 2, 0xff}}
	scanned, scannedSeal, ok := scanProperties(seal.AddTo(serialized))
	require.True(t, ok, serialized)
	require.Equal(t, p, scanned)
	require.Equal(t, seal, scannedSeal)
}

// FuzzWrittenPropertiesAreTheMarshalledOnes checks that encoding/json writes the same as
// writeProperties wherever that succeeds.
func FuzzWrittenPropertiesAreTheMarshalledOnes(f *testing.F) {
	f.Add("c", "k", []byte("v"), "a", "b", "t", 1, int64(2), int64(3), []byte("key"), true, uint8(0xff))
	f.Add("", "", []byte{}, "", "", "", 0, int64(-1), int64(-62135596800000), []byte{}, false, uint8(0xff))
	f.Add("<c>", "k&", []byte{0xff}, "\u2028", "b\"", "t\n", -1, int64(2), int64(3), []byte{0}, true, uint8(0x1f))
	f.Fuzz(func(t *testing.T, channel, header string, value []byte, name, attribute, topic string, partition int, offset,
		stamp int64, key []byte, tombstone bool, has uint8) {
		p := handler.Properties{Channel: channel}
		if has&1 != 0 {
			p.Headers = []handler.Header{{Key: header, Value: value}, {Key: name}}
		}
		if has&2 != 0 {
			p.Attributes = map[string]string{name: attribute, header: channel}
		}
		if has&4 != 0 {
			p.Kafka = &handler.KafkaCoordinates{Topic: topic, Partition: partition, Offset: offset,
				Timestamp: time.UnixMilli(stamp),
				Key:       key, Tombstone: tombstone, Index: int(has)}
			if has&8 != 0 {
				p.Kafka.Key = nil
			}
		}
		written, ok := writeProperties(p)
		if !ok {
			return
		}
		marshalled, err := marshal(p)
		require.NoError(t, err)
		require.Equal(t, marshalled, written)
	})
}

func BenchmarkParse(b *testing.B) {
	const serialized = `{"channel":"orders","headers":[{"k":"ce_id","v":"d0d0c5a8"},{"k":"ce_type","v":"order.placed"}],"kafka":{"topic":"t","partition":3,"offset":12,"timestamp_ms":1767355200123,"key":{"v":"k"}}}`
	for name, parse := range map[string]func(string) (handler.Properties, Seal, error){"scanned": ParseSealed,
		"decoded": decodeProperties} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := parse(serialized); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
