package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// Contract 15.
func TestShowNamesTheKeyOfASealedPayload(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, inboxtest.NewBox("k1").Option())
		inboxtest.Accept(t, r.ib, "a")
		for _, args := range [][]string{{"show", "a"}, {"show", "a", "--show-payload"}} {
			require.Contains(t, r.done(args...).out, `The payload is sealed with key "k1".`)
		}
		shown := r.done("show", "a", "--show-payload", "-o", "json").object()
		require.Equal(t, "k1", shown["key_id"])
		require.Equal(t, `sealed with key "k1"`, shown["sealed"])
		require.Nil(t, shown["content"])
	})
}
