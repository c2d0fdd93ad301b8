package memstore_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
)

// Random calls are compared with a plain map.
func TestStoreIsAMapWithExpiryTimes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		clock := fxtest.NewClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		limit := rapid.IntRange(1, 6).Draw(rt, "limit")
		s, err := memstore.New(func(o *memstore.Options) {
			o.MaxKeys = limit
			o.Clock = clock
			o.WaitTimeout = 0
		})
		require.NoError(rt, err)
		model := map[idempotent.Key]time.Time{}
		expired := func(before time.Time) (n int) {
			for _, at := range model {
				if at.Before(before) {
					n++
				}
			}
			return n
		}
		rt.Repeat(map[string]func(*rapid.T){
			"run": func(rt *rapid.T) {
				k := key(strconv.Itoa(rapid.IntRange(0, 9).Draw(rt, "id")))
				retention := time.Duration(rapid.IntRange(1, 5).Draw(rt, "hours")) * time.Hour
				var result error
				if rapid.Bool().Draw(rt, "fails") {
					result = errors.ErrUnsupported
				}
				called := false
				duplicate, err := s.Run(context.Background(), idempotent.Run{Key: k, Retention: retention},
					func(context.Context) error {
						called = true
						return result
					})
				_, known := model[k]
				full := len(model) == limit && expired(clock.Now()) == 0
				require.Equal(rt, known, duplicate)
				require.Equal(rt, !known && !full, called)
				if known {
					require.NoError(rt, err)
					return
				}
				if full {
					require.ErrorIs(rt, err, memstore.ErrFull)
					return
				}
				require.Equal(rt, result, err)
				if len(model) == limit { // the longest expired key made room
					var first idempotent.Key
					for k, at := range model {
						if first == (idempotent.Key{}) || at.Before(model[first]) {
							first = k
						}
					}
					for k, at := range model { // if several expired at the same time any of them may go
						if is, _ := s.Processed(context.Background(), k); !is {
							require.Equal(rt, model[first], at)
							first = k
						}
					}
					delete(model, first)
				}
				if result == nil {
					model[k] = clock.Now().Add(retention)
				}
			},
			"advance": func(rt *rapid.T) {
				clock.Advance(time.Duration(rapid.IntRange(1, 240).Draw(rt, "minutes")) * time.Minute)
			},
			"cleanup": func(rt *rapid.T) {
				before := clock.Now().Add(time.Duration(rapid.IntRange(-120, 120).Draw(rt, "minutes")) * time.Minute)
				n, err := s.Cleanup(context.Background(), before)
				require.NoError(rt, err)
				require.EqualValues(rt, expired(before), n)
				for k, at := range model {
					if at.Before(before) {
						delete(model, k)
					}
				}
			},
			"": func(rt *rapid.T) {
				require.Equal(rt, len(model), s.Len())
				for i := range 10 {
					is, err := s.Processed(context.Background(), key(strconv.Itoa(i)))
					require.NoError(rt, err)
					_, known := model[key(strconv.Itoa(i))]
					require.Equal(rt, known, is)
				}
			},
		})
	})
}
