package health

// The decisions that operators take about a halted partition, as they are stored in requests and in
// the workers' rows (contract 7.10).
const (
	// Resume reads the record or the batch again.
	Resume = "resume"
	// Continue goes on after a gap, or in a topic that was created again. Operators see it as
	// Resume. It is stored as another decision, so that a resume that was meant for a bad record is
	// not taken for one of a gap that was found at the same offset later.
	Continue = "continue"
	// Skip stores the record as rejected and goes on after it.
	Skip = "skip"
)
