package acceptor

import (
	"fmt"

	"github.com/gorm-inbox/inbox/envelope"
)

// badCount counts a partition's records in a batch, and how many of them are bad.
type badCount struct{ bad, total int }

// policyOf returns the inbox's policy for bad records, but BadRecordHalt for a partition that is
// mostly bad.
func (in *intake) policyOf(r envelope.Record) BadRecordPolicy {
	if _, halts := in.mostlyBad[partitionOf(r)]; halts {
		return BadRecordHalt
	}
	return in.opts.BadRecords
}

// findMostlyBad finds, once for the whole batch, partitions of which more than half of the records
// are bad, and reports whether there are any. Each partition counts by itself: partitions that
// share an accept may be of other topics and other producers.
//
// At least HaltAtBadRecords must be bad: on a quiet topic each record is a batch by itself, and one
// bad record is no sign of a wrong schema. Unrouted records do not count as bad, and it finds none
// if bad records halt in any case.
func (in *intake) findMostlyBad(received []envelope.Received, results []envelope.Result) bool {
	if in.judged || in.opts.BadRecords == BadRecordHalt || in.opts.HaltAtBadRecords == 0 {
		return false
	}
	in.judged = true
	counts := map[partition]badCount{}
	for i, r := range results {
		if record := received[i].Record; r.Err == nil || !bareTombstone(record) {
			s := counts[partitionOf(record)]
			s.total++
			if r.Err != nil && !isUnrouted(r.Err) {
				s.bad++
			}
			counts[partitionOf(record)] = s
		}
	}
	in.mostlyBad = map[partition]badCount{}
	for at, s := range counts {
		if s.bad >= in.opts.HaltAtBadRecords && s.bad > s.total/2 {
			in.mostlyBad[at] = s
		}
	}
	return len(in.mostlyBad) > 0
}

// bareTombstone reports whether a record has no more than a key. A producer that deletes on a
// compacted topic writes any number of these (Debezium: one per deletion), whatever the schema. If
// no message can be made of one, it counts neither as a bad record nor as a good one.
func bareTombstone(r envelope.Record) bool {
	return r.Value == nil && len(r.Headers) == 0 && r.RawHeaders == nil
}

// explain adds to the errors of these partitions' bad records why they halt.
func (in *intake) explain(received []envelope.Received, results []envelope.Result) []envelope.Result {
	for i, r := range results {
		if s, halts := in.mostlyBad[partitionOf(received[i].Record)]; halts && r.Err != nil && !isUnrouted(r.Err) {
			results[i].Err = fmt.Errorf("%d of %d records of the partition in one batch are bad, this one because: %w", s.bad,
				s.total, r.Err)
		}
	}
	return results
}
