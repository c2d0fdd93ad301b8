package processor

import (
	"sync"

	"github.com/gorm-inbox/inbox/internal/store"
)

// held tracks the statuses that this process has claimed and not yet settled.
type held struct {
	mu  sync.Mutex
	ids map[string]int64 // the claim's version by status ID
}

func newHeld() *held { return &held{ids: map[string]int64{}} }

func (h *held) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ids)
}

func (h *held) add(claims []store.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range claims {
		h.ids[c.StatusID] = max(h.ids[c.StatusID], c.Version) // an accept's response may arrive after that of the next claim
	}
}

// has reports whether this very claim is held. Comparing status IDs alone would hide a lost claim:
//
//  1. The result of an earlier claim is stored, but the response is lost, so we still hold it.
//  2. Before the completer has read the status back, it comes due and is claimed again.
//  3. The response of that claim is lost too. Nothing runs it, although its status ID is held.
func (h *held) has(r store.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids[r.StatusID] == r.Version
}

// drop forgets a claim, unless the status has been claimed again meanwhile.
func (h *held) drop(c store.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ids[c.StatusID] == c.Version {
		delete(h.ids, c.StatusID)
	}
}
