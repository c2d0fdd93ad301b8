package acceptor

import (
	"fmt"

	"github.com/gorm-inbox/inbox/envelope"
)

// share is how many of a partition's records in a batch are bad.
type share struct{ bad, of int }

// policyOf is the inbox's policy for bad records, but BadRecordHalt for a
// partition that is mostly bad.
func (in *intake) policyOf(r envelope.Record) BadRecordPolicy {
	if _, halts := in.mostlyBad[partitionOf(r)]; halts {
		return BadRecordHalt
	}
	return in.opts.BadRecords
}

// findMostlyBad looks, once for the whole batch, for partitions of which more
// than half is bad (contract 7.1), and reports whether there are any. Each
// partition counts by itself: those that happen to share an accept may be of
// other topics, and of other producers. Few bad records are no sign of a wrong
// schema, however small their batch: on a quiet topic each record is a batch by
// itself, and a bad one would halt. Unrouted ones don't count, nor do those that
// halt in any case.
func (in *intake) findMostlyBad(received []envelope.Received, results []envelope.Result) bool {
	if in.judged || in.opts.BadRecords == BadRecordHalt || in.opts.HaltAtBadRecords == 0 {
		return false
	}
	in.judged = true
	shares := map[partition]share{}
	for i, r := range results {
		if record := received[i].Record; r.Err == nil || !bareTombstone(record) {
			s := shares[partitionOf(record)]
			s.of++
			if r.Err != nil && !isUnrouted(r.Err) {
				s.bad++
			}
			shares[partitionOf(record)] = s
		}
	}
	in.mostlyBad = map[partition]share{}
	for at, s := range shares {
		if s.bad >= in.opts.HaltAtBadRecords && s.bad > s.of/2 {
			in.mostlyBad[at] = s
		}
	}
	return len(in.mostlyBad) > 0
}

// bareTombstone tells a record that has a key at most: a producer that deletes
// on a compacted topic writes as many as it likes (Debezium: one per deletion),
// whatever the schema. Where no message can be made of it, it counts neither
// among the bad nor among the others.
func bareTombstone(r envelope.Record) bool {
	return r.Value == nil && len(r.Headers) == 0 && r.RawHeaders == nil
}

// explain says why the bad records of these partitions halt.
func (in *intake) explain(received []envelope.Received, results []envelope.Result) []envelope.Result {
	for i, r := range results {
		if s, halts := in.mostlyBad[partitionOf(received[i].Record)]; halts && r.Err != nil && !isUnrouted(r.Err) {
			results[i].Err = fmt.Errorf("%d of %d records of the partition in one batch are bad, this one because: %w", s.bad,
				s.of, r.Err)
		}
	}
	return results
}
