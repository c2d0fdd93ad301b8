package main

func consumer(run string) test { return test{Package: "./kafkaconsumer", Run: run} }

func throughConsumers(run string) test {
	return test{Module: "integration", Package: "./kafka", Run: run}
}

var conditions = test{Package: "./internal/condition", Run: "^TestConditionIsLogged"}

func enveloping(run string) test { return test{Package: "./envelope", Run: run} }

// visibilityMutants are of what a consumer says of itself, of the topics it
// finds, and of what it makes of records.
var visibilityMutants = []mutant{
	{
		Name: "a group's leader lets the broker create topics",
		Why:  "a topic that is deleted while it is consumed would come back with the broker's defaults (contract 7.5)",
		File: "kafkaconsumer/requests.go",
		Old:  "			out[i-1] = allowNoTopicCreation\n",
		New:  "			_ = allowNoTopicCreation\n",
		Test: throughConsumers("^TestDiscovery$/^in-process$/^a_rebalance"),
	},
	{
		Name: "a topic that is gone silences the others",
		Why:  "nothing would be consumed until every member has noticed (contract 7.5)",
		File: "kafkaconsumer/leader.go",
		Old:  "		partitions = b.existing()\n",
		New:  "",
		Test: throughConsumers("^TestDiscovery$/^in-process$/^a_rebalance"),
	},
	{
		Name: "topics are compared by their number",
		Why:  "a topic that appears while another goes would never be consumed (contract 7.5)",
		File: "kafkaconsumer/group.go",
		Old:  "			if existing[topic] > 0 {\n				consumed++",
		New:  "			if len(existing) == len(topics) || existing[topic] > 0 {\n				consumed++",
		Test: throughConsumers("^TestDiscovery$/^in-process$/^a_topic_that_appears"),
	},
	{
		Name: "the first answer to a fetch says what was there at assignment",
		Why:  "a leader just elected may be behind: cleanup would forget what is redelivered next (contract 6.5)",
		File: "kafkaconsumer/partition.go",
		Old:  "	p.toldAt, p.fresh, p.answered = p.clock.Now(), true, true\n",
		New:  "	p.toldAt, p.fresh, p.answered = p.clock.Now(), true, true\n	p.assignedWatermark = max(p.assignedWatermark, highWatermark)\n",
		Test: throughConsumers("^TestPartitionHasNotCaughtUpBeforeItsLeaderKnowsItsEnd$"),
	},
	{
		Name: "a watermark below what is committed is believed",
		Why:  "cleanup would not wait for the records that this leader does not know of (contract 6.5)",
		File: "kafkaconsumer/lag.go",
		Old:  "	if highWatermark < p.committed {",
		New:  "	if highWatermark < -p.committed {",
		Test: consumer("^TestPartitionHasCaughtUp"),
	},
	{
		Name: "a partition of which no fetch was answered has caught up",
		Why:  "the log may have been truncated below what is committed (contract 6.5)",
		File: "kafkaconsumer/partitionhealth.go",
		Old:  "p.answered && p.assignedWatermark >= 0",
		New:  "p.assignedWatermark >= 0",
		Test: consumer("^TestPartitionHasCaughtUp"),
	},
	{
		Name: "joining may take for ever without a word",
		Why:  "a member without partitions would look well (contract 7.8)",
		File: "kafkaconsumer/consumer.go",
		Old:  "	if h.GroupErr == nil && h.State == StateJoining",
		New:  "	if h.GroupErr != nil && h.State == StateJoining",
		Test: throughConsumers("^TestJoiningThatTakesTooLongIsSaid$"),
	},
	{
		Name: "lag is known only as of the last fetch",
		Why:  "a halted or full partition would show no backlog while it grows (contract 7.8)",
		File: "kafkaconsumer/observe.go",
		Old:  "		s.refreshWatermarks(ctx)\n",
		New:  "",
		Test: throughConsumers("^TestLagGoesOnBeingKnownWhereNothingIsFetched$"),
	},
	{
		Name: "an open transaction counts as a stall",
		Why:  "nobody could believe the watchdog (contract 7.8)",
		File: "kafkaconsumer/lag.go",
		Old:  "	if p.readCommitted && p.lastStable >= 0 {",
		New:  "	if p.readCommitted && p.lastStable > p.highWatermark {",
		Test: consumer("^TestPartitionStallsOnlyWhileNothingElseSaysWhy$"),
	},
	{
		Name: "what waits to be accepted does not stall",
		Why:  "an accept that hangs for ever would never be said (contract 7.8)",
		File: "kafkaconsumer/lag.go",
		Old:  "p.err != nil || p.readable() <= 0 {",
		New:  "p.err != nil || p.readable() <= 0 || p.next > p.accepted {",
		Test: throughConsumers("^TestStallIsSaidOnceAndOver$"),
	},
	{
		Name: "a condition that lasts floods the log once it is old",
		Why:  "an outage of hours would fill disks (contract 7.8)",
		File: "internal/condition/condition.go",
		Old:  "	case now.Sub(c.logged) >= Reminder:",
		New:  "	case now.Sub(c.since) >= Reminder:",
		Test: conditions,
	},
	{
		Name: "a condition is forgotten while a source has it",
		Why:  "health would say that all is well (contract 7.8)",
		File: "internal/condition/condition.go",
		Old:  "	if !c.lasts || len(c.sources) > 0 {",
		New:  "	if !c.lasts {",
		Test: conditions,
	},
	{
		Name: "an empty value counts as a tombstone",
		Why:  "a handler would delete what was set to nothing (contract 4.5)",
		File: "envelope/decoder.go",
		Old:  "Tombstone: r.Value == nil",
		New:  "Tombstone: len(r.Value) == 0",
		Test: enveloping("^TestTombstoneAndEmptyValue"),
	},
	{
		Name: "white space around an ID is dropped",
		Why:  "two messages would be taken for one (contract 3.6)",
		File: "envelope/id.go",
		Old:  "			return string(h.Value)\n",
		New:  "			return strings.TrimSpace(string(h.Value))\n",
		Test: throughConsumers("^TestEveryEnvelopeIsStoredByteForByte$/^sqlite$"),
	},
	{
		Name: "an ID is measured in bytes",
		Why:  "valid messages would be rejected (contract 4.4)",
		File: "envelope/errors.go",
		Old:  "	if n := utf8.RuneCountInString(id); n > models.MaxMessageID {",
		New:  "	if n := len(id); n > models.MaxMessageID {",
		Test: throughConsumers("^TestEveryEnvelopeIsStoredByteForByte$/^sqlite$"),
	},
	{
		Name: "half a surrogate pair in a payload is replaced",
		Why:  "content would not be what was sent, and two of them the same (contract 4.5)",
		File: "envelope/structured.go",
		Old:  "		text, err := unquote(raw)\n		if err != nil {\n			return nil,",
		New:  "		var text string\n		if err := json.Unmarshal(raw, &text); err != nil {\n			return nil,",
		Test: enveloping("^TestMalformedCloudEvents"),
	},
	{
		Name: "of two IDs in an event the last counts",
		Why:  "two readers of one record take it for different messages: handled twice, or lost as a duplicate (contract 4.5)",
		File: "envelope/structured.go",
		Old:  "if n != len(members) {",
		New:  "if false {",
		Test: enveloping("^TestMalformedCloudEvents"),
	},
}
