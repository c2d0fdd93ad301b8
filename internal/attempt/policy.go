package attempt

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Policy says how one handler's attempts are limited and retried: by the handler's options, or else by the inbox's
// (contract 5.13).
type Policy struct {
	Timeout    time.Duration // of one attempt; 0 means no limit
	MaxRetries int           // the error count at which the message is given up; 0 and 1 mean on the first failure
	Delay      func(errorCount int) time.Duration
}

// NewPolicy returns a handler's policy. timeout, maxRetries, maxDelay and delay, which may be nil, are the inbox's.
func NewPolicy(h *handler.Handler, timeout time.Duration, maxRetries int, maxDelay time.Duration,
	delay func(errorCount int) time.Duration,
) Policy {
	usual := func(errorCount int) time.Duration { return Backoff(errorCount, maxDelay) }
	p := Policy{Timeout: cmp.Or(h.Timeout(), timeout), MaxRetries: maxRetries, Delay: usual}
	if n, own := h.MaxRetries(); own {
		p.MaxRetries = n
	}
	if delay != nil {
		p.Delay = guarded(delay, usual)
	}
	if own := h.Backoff(); own != nil {
		p.Delay = guarded(own, p.Delay)
	}
	return p
}

// guarded returns own without its panics: if own panics, fallback supplies the delay. An application's backoff must not
// end the process.
func guarded(own, fallback func(int) time.Duration) func(int) time.Duration {
	return func(errorCount int) (delay time.Duration) {
		defer func() {
			if recover() != nil {
				delay = fallback(errorCount)
			}
		}()
		return max(own(errorCount), 0)
	}
}

// Backoff returns the wait before attempt number count+1: half of min(2^count seconds, limit), plus a random part of up
// to the same length, so that messages which failed together drift apart (contract 5.6). The processor uses it as well
// for statuses that vanished workers or database failures have released. It cannot overflow.
func Backoff(count int, limit time.Duration) time.Duration {
	half, base := MinBackoff(count, limit), backoffBase(count, limit)
	return half + rand.N(base-half+1)
}

// MinBackoff returns the shortest wait that Backoff returns for a count.
func MinBackoff(count int, limit time.Duration) time.Duration { return backoffBase(count, limit) / 2 }

func backoffBase(count int, limit time.Duration) time.Duration {
	if count >= 33 { // 2^33 s is 272 years: beyond that limit is smaller
		return limit
	}
	return min(limit, time.Second<<max(count, 0))
}
