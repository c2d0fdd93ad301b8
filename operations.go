package inbox

import "github.com/gorm-inbox/inbox/ops"

// Ops returns what operators look at this inbox with and act on it by, for a
// dashboard or a program of one's own (contract 11.1). It has the inbox's
// tables, clock and StatementTimeout, and what only this process can do. It
// needs no Start and starts nothing.
func (ib *Inbox) Ops(options ...ops.Option) (*ops.Ops, error) {
	bound := []ops.Option{ops.Naming(ib.naming), ops.Clock(ib.cfg.clock), ops.StatementTimeout(ib.cfg.options.Processor.StatementTimeout)}
	o, err := ops.New(ib.db, append(bound, options...)...)
	return o, ib.name(err)
}
