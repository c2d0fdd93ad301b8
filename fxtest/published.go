package fxtest

import (
	"slices"
	"sync"

	"github.com/gorm-inbox/inbox/outgoing"
)

// published records what the outgoing channels of an application have published.
type published struct {
	mu      sync.Mutex
	byInbox map[string][]outgoing.Message
}

func (p *published) add(inbox string, m outgoing.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byInbox[inbox] = append(p.byInbox[inbox], m)
}

// Published returns the messages of a type that the inbox's outgoing channels have published, in their order. They are
// published by Process, as other handlers run. In an application that Manual does not control there are none.
func (k *Kit) Published(messageType string) []outgoing.Message {
	if k.left == nil {
		return nil
	}
	k.left.mu.Lock()
	defer k.left.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(k.left.byInbox[k.Inbox.Name()]), func(m outgoing.Message) bool {
		return m.Type != messageType
	})
}

// RequirePublished fails the test unless outgoing channels have published exactly n messages of a type, and returns
// them.
func (k *Kit) RequirePublished(messageType string, n int) []outgoing.Message {
	k.t.Helper()
	found := k.Published(messageType)
	if len(found) != n {
		k.t.Fatalf("fxtest: %d messages of type %q were published, not %d; call Process after what stores them", len(found),
			messageType, n)
	}
	return found
}
