package testenv

import "time"

// Patience is the timeout of each wait in a test. Only a defect reaches it, even on a busy machine.
// A long timeout costs nothing, because a wait ends with what it waits for.
const Patience = 2 * time.Minute
