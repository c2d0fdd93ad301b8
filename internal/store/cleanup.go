package store

import "time"

// latest bounds the walk: nothing received at or after it can be old enough.
func (r CleanupRequest) latest() time.Time {
	latest := r.Cutoff
	for _, own := range r.HandlerCutoffs {
		if own.Cutoff.After(latest) {
			latest = own.Cutoff
		}
	}
	return latest
}

// advance moves the cursor behind the last candidate.
func (r *CleanupResult) advance(candidates []CleanupCursor, limit int) {
	r.Done = len(candidates) < limit
	if len(candidates) > 0 {
		r.Next = candidates[len(candidates)-1]
		r.Next.ReceivedAt = r.Next.ReceivedAt.UTC()
	}
}
