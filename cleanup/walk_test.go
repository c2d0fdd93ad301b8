package cleanup

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
)

func TestRunsDoNotRereadMessagesKeptByLongRetention(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	at := func(h float64) time.Time { return noon.Add(time.Duration(h * float64(time.Hour))) }
	own := func(key string, hours int) *handler.Handler {
		return handler.New(key, func(context.Context, handler.Message[[]byte]) error { return nil },
			handler.Retention(time.Duration(hours)*time.Hour))
	}
	plan := func(w *walked, now time.Time) []span {
		spans, full := w.plan(now, false)
		w.done(now, full, true)
		return spans
	}
	t.Run("one retention: everything past it", func(t *testing.T) {
		w := &walked{retentions: retentionsOf(Options{Retention: 10 * time.Hour}, []*handler.Handler{own("a", 0)})}
		for h := range 50 {
			require.Equal(t, []span{{until: at(float64(h - 10))}}, plan(w, at(float64(h))))
		}
	})
	t.Run("a short one: what passed it lately, and what passed the longest", func(t *testing.T) {
		w := &walked{retentions: retentionsOf(Options{Retention: 100 * time.Hour},
			[]*handler.Handler{own("a", 0), own("b", 2)})}
		require.Equal(t, []span{{until: at(-2)}}, plan(w, at(0)), "the first run is full")
		for h := 1; h < fullEvery; h++ {
			f := float64(h)
			require.Equal(t, []span{{until: at(f - 100)}, {at(f - 1 - 2 - 1), at(f - 2)}}, plan(w, at(f)))
		}
		require.Equal(t, []span{{until: at(fullEvery - 2)}}, plan(w, at(fullEvery)), "and one in many")
	})
	t.Run("a short one where others have none", func(t *testing.T) {
		w := &walked{retentions: retentionsOf(Options{}, []*handler.Handler{own("a", 0), own("b", 2)})}
		require.Equal(t, []span{{until: at(-2)}}, plan(w, at(0)))
		require.Equal(t, []span{{at(-3), at(-1)}}, plan(w, at(1)))
	})
	t.Run("three: each when it is passed, adjoining ones as one", func(t *testing.T) {
		w := &walked{retentions: retentionsOf(Options{Retention: 3 * time.Hour},
			[]*handler.Handler{own("a", 0), own("b", 2), own("c", 50)})}
		plan(w, at(0))
		require.Equal(t, []span{{until: at(1 - 50)}, {at(-4), at(1 - 2)}}, plan(w, at(1)))
	})
	t.Run("other processes' handlers keep messages for an unknown time", func(t *testing.T) {
		w := &walked{retentions: retentionsOf(Options{Retention: 10 * time.Hour}, []*handler.Handler{own("a", 0)})}
		plan(w, at(0))
		spans, _ := w.plan(at(1), true)
		require.Equal(t, []span{{at(-11), at(1 - 10)}}, spans)
	})
	t.Run("what was left over is read again", func(t *testing.T) {
		w := &walked{retentions: retentionsOf(Options{}, []*handler.Handler{own("a", 0), own("b", 2)})}
		plan(w, at(0))
		_, full := w.plan(at(1), false)
		w.done(at(1), full, false)
		require.Equal(t, []span{{at(-3), at(3)}}, plan(w, at(5)))
	})
}
