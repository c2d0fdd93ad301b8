package redisstore

import (
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
)

// Beginnings of the values.
const (
	claimedPrefix   = "claimed "
	processedPrefix = "processed "
)

var errForeignValue = errors.New("its key in Redis holds something that is no claim and no marker: give the store a KeyPrefix of its own")

// escaped are the characters that have a meaning in a key. With them encoded
// the last "{" ends the prefix, whatever that holds, and each ":" behind it ends one
// of handler key, message ID and, if there is one, namespace: no two keys are the
// same, of other prefixes neither.
var escaped = strings.NewReplacer("%", "%25", ":", "%3A", "{", "%7B", "}", "%7D")

func (s *Store) key(key idempotent.Key) string {
	of := escaped.Replace(key.HandlerKey) + ":" + escaped.Replace(key.MessageID)
	if key.Namespace != "" {
		of += ":" + escaped.Replace(key.Namespace)
	}
	return s.options.KeyPrefix + ":{" + of + "}"
}

// newToken is unique to a call: a call must not take another's claim of the same
// process for its own.
func newToken() string { return rand.Text() }

func claimedValue(token string) string { return claimedPrefix + token }

// processedValue has the token, so that a finalise whose answer was lost is
// recognised when it is asked for again.
func processedValue(token string, at time.Time, messageType string) string {
	return processedPrefix + token + " " + at.UTC().Format(time.RFC3339Nano) + " " + messageType
}

// known tells values of a store, and none, from what others have put there.
func known(value string) bool {
	return value == "" || strings.HasPrefix(value, claimedPrefix) || strings.HasPrefix(value, processedPrefix)
}
