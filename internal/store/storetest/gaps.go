package storetest

import (
	"strings"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/models"
)

var gapTests = []test{
	{"a gap is kept once, whatever its reason says", func(s *suite) {
		keep := func(change func(*models.Gap)) bool {
			gap := models.Gap{ID: uuid.NewString(), Channel: "c", Topic: strings.Repeat("t", 249), Partition: 3,
				FromOffset: 1 << 40, ToOffset: 0,
				Reason: "gone \x00\xff " + strings.Repeat("x", 3000), FoundAt: noon}
			if change != nil {
				change(&gap)
			}
			added, err := s.store.KeepGap(s.ctx, gap)
			require.NoError(s, err)
			return added
		}
		require.True(s, keep(nil))
		require.False(s, keep(nil))
		for _, other := range []func(*models.Gap){
			func(g *models.Gap) { g.Channel = "d" }, func(g *models.Gap) { g.Topic = "t" },
			func(g *models.Gap) { g.Partition = 4 },
			func(g *models.Gap) { g.FromOffset = 5 }, func(g *models.Gap) { g.ToOffset = 7 },
		} {
			require.True(s, keep(other))
		}
		var gaps []models.Gap
		require.NoError(s, s.db.Find(&gaps).Error)
		require.Len(s, gaps, 6)
		for _, g := range gaps {
			require.Len(s, []rune(g.Reason), columns.MaxLastError)
			require.True(s, g.FoundAt.Equal(noon))
		}
	}},
}
