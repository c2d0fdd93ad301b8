package processor

import (
	"maps"
	"strings"
	"sync"
	"time"
)

// bucket is the token bucket of a rate. It has no tokens at first, and gets none with a portion: its former owner may
// just have used that portion's burst. For a rate by key it is the bucket of each key that has had no call. It is safe
// for concurrent use.
type bucket struct {
	mu        sync.Mutex
	perSecond float64
	size      float64
	tokens
	atLeast  int                   // the least that Ahead returns
	keys     map[string]*keyBucket // nil unless the rate is by key
	forgetAt int                   // so many keys, forget those that need no bucket of their own
}

func newBucket(byKey, drains bool) *bucket {
	b := &bucket{tokens: tokens{at: time.Now()}}
	if byKey {
		b.keys = map[string]*keyBucket{}
	}
	if drains { // otherwise one that has found nothing due would have to wait as well
		b.atLeast = 1
	}
	return b
}

// tokens are the tokens that a bucket had at a time.
type tokens struct {
	n  float64
	at time.Time
}

// keyBucket is the bucket of one key. Tokens before next are meant for messages that were set aside.
type keyBucket struct {
	tokens
	next time.Time
}

// rateAhead is how long claimed messages may wait for the rate.
const rateAhead = 100 * time.Millisecond

func (b *bucket) refill(t *tokens, now time.Time) {
	t.n, t.at = min(t.n+now.Sub(t.at).Seconds()*b.perSecond, b.size), now
}

func (b *bucket) set(perSecond float64, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.refillAll(now)
	b.perSecond, b.size = perSecond, float64(size)
	b.refillAll(now) // to the new size
}

// empty takes all tokens.
func (b *bucket) empty() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = tokens{at: time.Now()}
	clear(b.keys)
}

func (b *bucket) refillAll(now time.Time) {
	b.refill(&b.tokens, now)
	for _, k := range b.keys {
		b.refill(&k.tokens, now)
	}
}

// Ready returns how many calls may start now: of a rate by key, those of one key.
func (b *bucket) Ready() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(&b.tokens, time.Now())
	return int(b.n)
}

// Ahead returns how many messages may be claimed that start within rateAhead. If the rate is by key, only a call can
// show which messages exceed it.
func (b *bucket) Ahead() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(&b.tokens, time.Now())
	switch {
	case b.perSecond == 0:
		return 0
	case b.keys != nil && b.n >= 1:
		return unlimited
	default:
		return max(int(min(b.perSecond*rateAhead.Seconds(), unlimited)), b.atLeast)
	}
}

// Take counts a call that starts. If the rate is by key, admit does.
func (b *bucket) Take() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keys == nil {
		b.refill(&b.tokens, time.Now())
		b.n--
	}
}

// next returns when a call may start; zero if one may now, or if none ever may.
func (b *bucket) next() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(&b.tokens, time.Now())
	if b.n >= 1 || b.perSecond == 0 {
		return time.Time{}
	}
	return b.at.Add(b.duration(1-b.n) + time.Microsecond)
}

// duration returns how long it takes to get so many tokens, a day at most.
func (b *bucket) duration(n float64) time.Duration {
	return time.Duration(min(n/b.perSecond, 24*time.Hour.Seconds()) * float64(time.Second))
}

// admit takes a token of a key and returns 0, or returns how long the message is to be set aside. before is how often
// it was claimed before, and was set aside.
//
// Messages of a key get its next tokens one after the other, so that each usually comes once more, and finds its token.
// The token may be gone, because other workers run some messages of the key and set others aside. Then a message waits
// for the next token, and each time for twice as many more.
func (b *bucket) admit(key string, before int, now time.Time) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.perSecond == 0 { // the last portion has just gone
		return rateAhead
	}
	k := b.bucketOf(key, now)
	switch {
	case k.n >= 1 && (before > 0 || !k.next.After(now) || k.n >= b.size): // a full bucket waits for no message
		k.n--
		return 0
	case before > 0:
		wait = b.duration(float64(int(1)<<min(before-1, 10)) - k.n)
	default:
		if free := now.Add(b.duration(1 - k.n)); k.next.Before(free) {
			k.next = free
		}
		wait = k.next.Sub(now)
		k.next = k.next.Add(b.duration(1))
	}
	return wait + time.Millisecond
}

// bucketOf returns the bucket of a key. It forgets the buckets that are like that of a key without a call.
func (b *bucket) bucketOf(key string, now time.Time) *keyBucket {
	if k := b.keys[key]; k != nil {
		b.refill(&k.tokens, now)
		return k
	}
	if len(b.keys) >= b.forgetAt {
		b.refillAll(now)
		maps.DeleteFunc(b.keys, func(_ string, k *keyBucket) bool { return k.n >= b.n && !k.next.After(now) })
		b.forgetAt = 2*len(b.keys) + 1_000
	}
	b.refill(&b.tokens, now)
	k := &keyBucket{tokens: b.tokens}
	b.keys[strings.Clone(key)] = k // the key may be a part of a large message
	return k
}
