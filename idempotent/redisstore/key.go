package redisstore

import (
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/idempotent"
)

// Prefixes of the values.
const (
	claimedPrefix   = "claimed "
	processedPrefix = "processed "
)

var errForeignValue = errors.New("its key in Redis holds something that is no claim and no marker: give the store a KeyPrefix of its own")

// escaped encodes the characters that have a meaning in a key. Then the last "{" ends the prefix, even if the prefix
// contains one, and each ":" after it ends the message ID or the namespace. So no two keys are the same, not even with
// different prefixes. The text in the braces is the same for all handlers of a message, so that a script may use
// several of its keys in a cluster.
var escaped = strings.NewReplacer("%", "%25", ":", "%3A", "{", "%7B", "}", "%7D")

func (s *Store) key(key idempotent.Key) string {
	message := escaped.Replace(key.MessageID)
	if key.Namespace != "" {
		message += ":" + escaped.Replace(key.Namespace)
	}
	return s.options.KeyPrefix + ":{" + message + "}:" + escaped.Replace(key.HandlerKey)
}

// newToken returns a token that is unique to a call: a call must not take another call's claim for its own, not even
// one of the same process.
func newToken() string { return rand.Text() }

func claimedValue(token string) string { return claimedPrefix + token }

// processedValue returns the value of a marker. It contains the token, so that a finalise whose response was lost
// recognises it when it is repeated.
func processedValue(token string, at time.Time, messageType string) string {
	return processedPrefix + token + " " + at.UTC().Format(time.RFC3339Nano) + " " + messageType
}

// known reports whether a value, or its absence, comes from a store and not from another program.
func known(value string) bool {
	return value == "" || strings.HasPrefix(value, claimedPrefix) || strings.HasPrefix(value, processedPrefix)
}
