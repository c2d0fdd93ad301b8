package registry_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/registry"
)

func TestRegistryCopiesItsSlices(t *testing.T) {
	h := handler.New("h", func(context.Context, handler.Message[[]byte]) error { return nil })
	r, err := registry.New([]registry.Subscription{{Channel: "c", Type: "t", Handler: h}})
	require.NoError(t, err)
	r.Route("c", "t")[0] = nil
	require.Equal(t, []*handler.Handler{h}, slices.Collect(r.Handlers()))
	require.Equal(t, []*handler.Handler{h}, r.Route("c", "t"))
	require.Equal(t, []*handler.Handler{nil, h}, r.AppendRoute([]*handler.Handler{nil}, "c", "t"))
	require.Empty(t, r.Route("c", "other"))
}
