// Package resolver proves that an inbox works with GORM's dbresolver, which sends reads outside of
// transactions to replicas.
package resolver

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) {
	// GORM never stops the goroutine of its prepared statements.
	testenv.Main(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}
