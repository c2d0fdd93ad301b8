package envelope

// Gap is a place in a partition where the records that should be read next do not exist: retention removed them, or the
// log was truncated or begins again.
type Gap struct {
	Topic     string
	Partition int
	// From is the offset that should be read next. To is where reading continues: above From if records were removed,
	// below it if the log begins again.
	From, To int64
	Reason   string
}
