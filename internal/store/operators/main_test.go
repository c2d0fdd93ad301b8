package operators_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/internal/testenv"
)

func TestMain(m *testing.M) {
	// GORM never ends the goroutine that manages its prepared statements.
	testenv.Main(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}
