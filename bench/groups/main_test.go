package groups

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/bench/workers"
)

// TestMain makes the test program usable as a worker process, like the command.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == workers.Command {
		if err := Worker(context.Background(), os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
