package kafkaconsumer

import "fmt"

// afterEmptyBatch finds the offset after a batch of which compaction has left
// no record at or above offset. Its last offset is not in what kafka-go
// decodes, and a fetch never crosses the end of a segment: without this step
// the same batch would come for ever. A fetch answers with the batch that
// holds the offset, or else the next one; so the wanted offset is the smallest
// above base that is answered with another batch. It is at most end, where
// there is nothing more to read.
func (f *fetcher) afterEmptyBatch(base, offset, end int64) (int64, error) {
	same, other := base, end // known to be answered with the batch, and not
	probe := func(at int64) error {
		response, err := f.fetch(at, 0, 0, 1)
		if err != nil {
			return err
		}
		found, err := decodeRecords(f.partition.topic, response, at)
		if err != nil {
			return err
		}
		if found.firstBase == base {
			same = at
		} else {
			other = at
		}
		return nil
	}
	for step := int64(1); base+step < other; step *= 2 {
		if err := probe(base + step); err != nil {
			return 0, err
		}
	}
	for other-same > 1 {
		if err := probe(same + (other-same)/2); err != nil {
			return 0, err
		}
	}
	if other <= offset {
		return 0, fmt.Errorf("%w: the batch at %d ends before offset %d, for which it was sent", ErrUndecodable, base, offset)
	}
	return other, nil
}
