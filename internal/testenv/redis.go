package testenv

import (
	"os"
	"testing"
)

// RedisVariable names the environment variable with the URL (redis://…) of a
// server in which tests may keep keys.
const RedisVariable = "INBOX_TEST_REDIS"

// Redis returns the URL of the server that RedisVariable names, and a key prefix of the test's own.
// The server is shared, and nothing on it is removed for the test. Without a server it ends the
// test, see LeaveOut.
func Redis(t testing.TB) (url, keyPrefix string) {
	t.Helper()
	url = os.Getenv(RedisVariable)
	if url == "" {
		LeaveOut(t, "Redis", RedisVariable)
	}
	return url, "inbox_test_" + randomHex(t)
}
