package properties_test

import (
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/properties"
)

func TestOccurredAtPrefersEventTimeOverRecordTime(t *testing.T) {
	recorded := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	with := func(timestamp time.Time, attributes ...string) handler.Properties {
		p := handler.Properties{Attributes: map[string]string{}, Kafka: &handler.KafkaCoordinates{Timestamp: timestamp}}
		if len(attributes) > 0 {
			p.Attributes["time"] = attributes[0]
		}
		return p
	}
	said := time.Date(2026, 1, 1, 22, 0, 0, 123456789, time.UTC)
	for name, c := range map[string]struct {
		properties handler.Properties
		expected   time.Time
	}{
		"the event's time, in another zone": {with(recorded, "2026-01-02T00:00:00.123456789+02:00"), said},
		"the record's timestamp":            {with(recorded), recorded},
		"text that is no time":              {with(recorded, "yesterday"), recorded},
		"a record without a timestamp":      {with(time.UnixMilli(-1).UTC()), time.Time{}},
		"coordinates without a timestamp":   {with(time.Time{}), time.Time{}},
		"1970":                              {with(time.UnixMilli(0).UTC()), time.UnixMilli(0).UTC()},
		"no event and no record":            {handler.Properties{}, time.Time{}},
		"an event of the application's":     {handler.Properties{Attributes: map[string]string{"time": "2026-01-01T22:00:00.123456789Z"}}, said},
	} {
		require.Equal(t, c.expected, properties.OccurredAt(c.properties), name)
		stored, err := properties.Serialize(c.properties)
		require.NoError(t, err)
		loaded, err := properties.Parse(stored)
		require.NoError(t, err)
		require.Equal(t, c.expected, properties.OccurredAt(loaded), "%s: stored", name)
	}
}

// TestTimesAreParsedLikeTheCloudEventsSDK keeps the two alike: the decoder refuses by the SDK's rule.
func TestTimesAreParsedLikeTheCloudEventsSDK(t *testing.T) {
	for _, text := range []string{"2026-01-02T03:04:05Z", "2026-01-02T03:04:05.5+01:00", "2026-01-02t03:04:05z", "2026-01-02",
		"2026-01-02T03:04:05", "2026-02-30T03:04:05Z", "2026-01-02T03:04:05,5Z", "", "1767323045"} {
		expected, err := types.ParseTime(text)
		occurred := properties.OccurredAt(handler.Properties{Attributes: map[string]string{"time": text}})
		require.Equal(t, err != nil, occurred.IsZero(), text)
		require.True(t, expected.Equal(occurred), text)
	}
}

func TestOccurredAtAllocatesNothing(t *testing.T) {
	p := handler.Properties{Attributes: map[string]string{"time": "2026-01-02T03:04:05.123Z"}}
	require.Zero(t, testing.AllocsPerRun(100, func() { properties.OccurredAt(p) }))
}
