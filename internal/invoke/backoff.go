package invoke

import (
	"math/rand/v2"
	"time"
)

// Backoff is the wait before attempt number count+1: half of
// min(2^count seconds, limit), plus a random part up to the same again, so
// that messages which failed together drift apart (contract 5.6). It cannot
// overflow.
func Backoff(count int, limit time.Duration) time.Duration {
	base := limit
	if count < 33 { // 2^33 s is 272 years: beyond that the limit decides
		base = min(limit, time.Second<<max(count, 0))
	}
	half := base / 2
	return half + rand.N(base-half+1)
}
