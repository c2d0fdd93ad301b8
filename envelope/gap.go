package envelope

// Gap is a place in a partition where records that should be read next cannot
// be: retention removed them, or the log was truncated or begins anew.
type Gap struct {
	Topic     string
	Partition int
	// From is the offset that should be read next, To where reading goes on:
	// above From if records were removed, below if the log begins anew.
	From, To int64
	Reason   string
}
