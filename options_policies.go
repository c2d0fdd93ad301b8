package inbox

import "github.com/gorm-inbox/inbox/acceptor"

// Unrouted says what happens to messages that no handler takes: acceptor.UnroutedIgnore
// (default), acceptor.UnroutedReject or acceptor.UnroutedHalt. Do not use Reject on topics that
// carry other teams' types: every one of them would be kept. It is apart from
// BadRecords: Reject keeps a rejected row also where bad records go to a
// dead-letter topic. In Direct channels a record with several messages, of
// which some are unrouted and others were given up by a handler, is treated
// once: by BadRecords, and its reason says both.
func Unrouted(policy acceptor.UnroutedPolicy) Option {
	return func(c *config) { c.options.Acceptor.Unrouted = policy }
}

// DifferingContent says what happens to a message whose ID, type and source are
// known with other content: acceptor.DifferingContentLog (default), which takes it for a
// duplicate, or acceptor.DifferingContentReject, which makes its record bad, to be treated by
// BadRecords. The content stored first counts in either case, and each is counted
// and logged with its ID. Do not use Reject where a producer may build a message
// anew when it sends it again, with a time of sending in it, say: each would be
// kept (contract 4.3).
func DifferingContent(policy acceptor.DifferingContentPolicy) Option {
	return func(c *config) { c.options.Acceptor.DifferingContent = policy }
}

// BadRecords says what happens to records of which no message can be made:
// acceptor.BadRecordStore (default), acceptor.BadRecordDeadLetter, which needs a DeadLetterTopic
// in the Kafka config of every channel, or acceptor.BadRecordHalt. Do not use Halt
// unless someone is there to act: the partition stands still until then. Do
// not use DeadLetter to be rid of them: AcceptRejected only knows what is
// stored (contract 7.4).
func BadRecords(policy acceptor.BadRecordPolicy) Option {
	return func(c *config) { c.options.Acceptor.BadRecords = policy }
}

// HaltAtBadRecords says how many records of one partition in one batch must be
// bad, and more than half of its records there with them, to halt the partition
// whatever BadRecords says: so many are a wrong schema or configuration, which
// is better mended before the rest is read. The other partitions of the batch
// go on. Unrouted records don't count as bad; a tombstone without headers of
// which no message can be made does not count at all, but is still treated by
// BadRecords. Default 20; 0 never halts for that. Do not set it to a few: on a
// quiet topic a batch is a record or two; nor rely on it in Direct channels,
// whose batches are always one record (contract 7.1).
func HaltAtBadRecords(n int) Option {
	return func(c *config) { c.options.Acceptor.HaltAtBadRecords = n }
}

// ShutdownOnHalt ends the Fx application, with exit code 1, when a partition
// halts, for whatever reason: a bad record under acceptor.BadRecordHalt, an offset out
// of range, records that cannot be read. Without it the application stays
// alive, the other partitions go on, and Health().Degraded() names the halted
// one. Do not use it where a supervisor only starts the application again: it
// would halt again at the same record, and nothing else would run either.
// Without Fx it is a start-up error: use OnHalt of kafkaconsumer.Config
// (contract 7.4).
func ShutdownOnHalt() Option { return func(c *config) { c.options.ShutdownOnHalt = true } }

// OnGap says what happens where records that should be read next are not there
// any more, because retention removed them or the topic was deleted and created
// again: acceptor.GapHalt (default) or acceptor.GapContinue, which keeps a row (Inbox.Gaps) and
// goes on with what the log holds (contract 7.5). Going on in a topic that was
// created again, or whose log was truncated, reads it from its start, and what
// was read before is known by its ID: the Retention must be longer than the
// topic keeps its records, or they are processed again. Do not use Continue
// where missing records must be looked into before the later ones are
// processed.
//
// A halt at a topic that was created again does not survive a restart or a
// rebalance: brokers forget a group's offsets when its topic is deleted, and
// reading then begins anew at StartOffset.
func OnGap(policy acceptor.GapPolicy) Option {
	return func(c *config) { c.options.Acceptor.OnGap = policy }
}
