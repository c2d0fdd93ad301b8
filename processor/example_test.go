package processor_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorm-inbox/inbox/processor"
)

// Options begin with the defaults. inbox.Options has them as Processor.
func ExampleDefaultOptions() {
	o := processor.DefaultOptions()
	o.Concurrency = 0
	o.HandlerTimeout = 10 * time.Minute
	fmt.Println(errors.Join(o.Validate()...))
	// Output:
	// option Concurrency = 0: must be 1 or more
	// option StuckMessageThreshold = 5m0s: must be more than HandlerTimeout (10m0s)
}
