package testenv

import "time"

// Patience bounds each wait of a test for what must happen. Only a defect
// reaches it, on a machine with much else to do, too: a wait costs no more than
// what it waits for takes.
const Patience = 2 * time.Minute
