package fxtest

import (
	"github.com/gorm-inbox/inbox/models"
)

// RequireAccepted fails the test unless the message is stored, and returns it.
func (k *Kit) RequireAccepted(messageID string) models.Message {
	k.t.Helper()
	var messages []models.Message
	if err := k.DB.Clauses(k.Inbox.Tables()).Where("id = ?", messageID).Limit(1).Find(&messages).Error; err != nil {
		k.t.Fatalf("fxtest: read message %q: %v", messageID, err)
	}
	if len(messages) == 0 {
		k.t.Fatalf("fxtest: message %q was never accepted, or is cleaned", messageID)
	}
	return messages[0]
}

// RequireNotAccepted fails the test if the message is stored.
func (k *Kit) RequireNotAccepted(messageID string) {
	k.t.Helper()
	f, err := find(k.Inbox, messageID, "")
	if err != nil {
		k.t.Fatalf("fxtest: read message %q: %v", messageID, err)
	}
	if f.message {
		k.t.Fatalf("fxtest: message %q is accepted", messageID)
	}
}

// RequirePending fails the test unless the handler has yet to succeed for the message, whether it failed before or not,
// and returns the status.
func (k *Kit) RequirePending(messageID, handlerKey string) models.HandlerStatus {
	k.t.Helper()
	return require(k.t, k.Inbox, pending, messageID, handlerKey)
}

// RequireCompleted fails the test unless the handler has returned nil for the message, and returns the status.
func (k *Kit) RequireCompleted(messageID, handlerKey string) models.HandlerStatus {
	k.t.Helper()
	return require(k.t, k.Inbox, completed, messageID, handlerKey)
}

// RequireFailed fails the test unless the handler has failed for the message and the status waits for its next attempt.
// It returns the status with its last error. After the last attempt the status is poisoned instead.
func (k *Kit) RequireFailed(messageID, handlerKey string) models.HandlerStatus {
	k.t.Helper()
	return require(k.t, k.Inbox, failed, messageID, handlerKey)
}

// RequirePoisoned fails the test unless the status is poisoned, and returns it with its last error.
func (k *Kit) RequirePoisoned(messageID, handlerKey string) models.HandlerStatus {
	k.t.Helper()
	return require(k.t, k.Inbox, poisoned, messageID, handlerKey)
}
