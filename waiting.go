package inbox

import (
	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// waiting reports to cleanup which consumer it has to wait for (contract 6.5); nil
// if there is none. Before Start and after Stop there are no consumers.
func (ib *Inbox) waiting() error {
	ib.mu.Lock()
	consumers := ib.consumers
	ib.mu.Unlock()
	for _, c := range consumers {
		h := c.Health()
		if c.Direct() && !ib.sweeps(h.Channel) {
			continue // no redelivery of its needs what cleanup deletes
		}
		if !h.CaughtUp() {
			return waitingError(h)
		}
	}
	return nil
}

// waitingError returns what keeps a consumer from having caught up.
func waitingError(h kafkaconsumer.Health) *cleanup.WaitingError {
	waiting := &cleanup.WaitingError{Channel: h.Channel, Err: h.GroupErr}
	if waiting.Err == nil {
		waiting.Err = h.AcceptErr
	}
	if waiting.Err == nil {
		waiting.Err = h.DeadLetterErr
	}
	for _, p := range h.Partitions {
		if p.CaughtUp {
			continue
		}
		waiting.Topic, waiting.Partition = p.Topic, p.Partition
		if p.Halted != nil {
			waiting.Err = p.Halted
		} else if p.Err != nil {
			waiting.Err = p.Err
		} else if waiting.Err == nil {
			waiting.Err = p.WatermarkErr
		}
		break
	}
	return waiting
}
