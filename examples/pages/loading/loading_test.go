package loading

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
)

// loaded is what the file and the environment of the page say.
func loaded() inbox.Options {
	o := inbox.DefaultOptions()
	o.Processor.MaxRetries, o.Processor.MaxRetryDelay, o.Processor.Concurrency = 12, 10*time.Minute, 20
	o.Cleanup.Retention = 7 * 24 * time.Hour
	o.Acceptor.BadRecords, o.Migrate = acceptor.BadRecordDeadLetter, true
	return o
}

func TestFileIsLoadedOverTheDefaults(t *testing.T) {
	file, err := os.ReadFile("inbox.yaml")
	require.NoError(t, err)
	o, err := fromYAML(bytes.NewReader(file))
	require.NoError(t, err)
	require.Equal(t, loaded(), o)
}

func TestUnknownKeyInTheFileIsRefused(t *testing.T) {
	for _, nested := range []string{"processor:\n  max_retries: 12\n", "max_retrys: 12\n"} {
		_, err := fromYAML(strings.NewReader(nested))
		require.ErrorContains(t, err, "line 1: field "+nested[:strings.Index(nested, ":")]+" not found in type inbox.Options")
	}
}

func TestEnvironmentIsLoadedOverTheDefaults(t *testing.T) {
	file, err := os.ReadFile("inbox.env")
	require.NoError(t, err)
	for line := range strings.Lines(string(file)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		t.Setenv(key, value)
	}
	o, err := fromEnvironment()
	require.NoError(t, err)
	require.Equal(t, loaded(), o)
}

func TestUnknownKeyInTheEnvironmentIsRefused(t *testing.T) {
	t.Setenv("ORDERS_INBOX_PROCESSOR_MAX_RETRIES", "12")
	_, err := fromEnvironment()
	require.EqualError(t, err, "ORDERS_INBOX_PROCESSOR_MAX_RETRIES: no option has this key")
}
