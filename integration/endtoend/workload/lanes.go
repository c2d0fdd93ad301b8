package workload

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/handler"
)

// StepType is the type of messages that belong to lanes.
const StepType = "lane.step"

// Generation is a version of the program. Each version renames the ordered handlers of the one
// before, and knows all of their earlier keys.
type Generation int

// The first generations. The zero value has the jobs' handlers instead of ordered ones.
const (
	Original Generation = 1 + iota
	Renamed
	RenamedTwice
)

// Step is the payload of the n-th message of a lane.
type Step struct {
	Lane string `json:"lane"`
	N    int    `json:"n"`
	// Fails is how many of the first attempts fail.
	Fails int `json:"fails,omitempty"`
	// Snoozes makes the first attempt snooze.
	Snoozes bool `json:"snoozes,omitempty"`
}

// Message returns the step as a message that is accepted directly.
func (s Step) Message() handler.RawMessage {
	content, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("a struct of strings and numbers always encodes: %v", err))
	}
	return handler.RawMessage{Channel: Channel, ID: s.id(), Type: StepType, Source: "endtoend",
		Content: content, OrderingKey: []byte(s.Lane)}
}

func (s Step) id() string { return fmt.Sprintf("%s/%d", s.Lane, s.N) }

// laneOptions declares the two ordered handlers of a generation.
func (s Settings) laneOptions(h *Handlers) inbox.ChannelOption {
	names := func(key string) (string, []handler.Option) {
		if s.Generation <= Original {
			return key, []handler.Option{handler.Ordered()}
		}
		var legacy []string
		for g := s.Generation - 1; g > Original; g-- {
			legacy = append(legacy, fmt.Sprintf("%s-%d", key, g))
		}
		return fmt.Sprintf("%s-%d", key, s.Generation),
			[]handler.Option{handler.LegacyKeys(append(legacy, key)...), handler.Ordered()}
	}
	txKey, txOptions := names("step-tx")
	plainKey, plainOptions := names("step-plain")
	return inbox.On(StepType,
		inbox.Tx(txKey, func(ctx context.Context, tx *gorm.DB, m handler.Message[Step]) error {
			if err := tx.Exec("INSERT INTO steps (handler, lane, n, pid) VALUES ('tx', ?, ?, ?)", m.Payload.Lane, m.Payload.N,
				os.Getpid()).Error; err != nil {
				return fmt.Errorf("record step: %w", err)
			}
			p := Published{ID: m.Payload.id(), Lane: m.Payload.Lane, N: m.Payload.N}
			if err := h.publish(ctx, tx, p); err != nil {
				return err
			}
			return m.Payload.outcome(m.Attempt)
		}, append(txOptions, handler.TxGroup(5))...),
		inbox.Func(plainKey, func(ctx context.Context, m handler.Message[Step]) error {
			if err := m.Payload.outcome(m.Attempt); err != nil {
				return err
			}
			return h.logStep(ctx, m.Payload)
		}, plainOptions...))
}

func (s Step) outcome(attempt int) error {
	if attempt <= s.Fails {
		return errAsked
	}
	if s.Snoozes && time.Now().UnixNano()%2 == 0 { // at random: snoozes are not counted
		return handler.Snooze(20 * time.Millisecond)
	}
	return nil
}

func (h *Handlers) logStep(ctx context.Context, s Step) error {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	_, err := h.effects.ExecContext(ctx, Text(h.effects, "INSERT INTO steps (handler, lane, n, pid) VALUES ('plain', $1, $2, $3)"),
		s.Lane, s.N, os.Getpid())
	if err != nil {
		return fmt.Errorf("log step: %w", err)
	}
	return nil
}

// LaneVerdict is the result of checking the rows of ordered handlers.
type LaneVerdict struct {
	Lanes, Steps int
	// Missing counts steps without a row. OutOfOrder counts rows that come after a later step of
	// their lane. Doubled counts second rows of the transactional handler.
	Missing, OutOfOrder, Doubled int
	// TxOutOfOrder counts those rows that are out of order whose handler is transactional. A plain handler's row can be
	// when its worker was frozen longer than its timeout.
	TxOutOfOrder int
	// Reruns counts second rows of the plain handler, which are allowed directly after the first.
	Reruns int
}

// ReadLanes checks the rows in the order of the inserts, given how many steps were produced. A plain handler may have
// repeated its last step before any later one.
func ReadLanes(ctx context.Context, db *sql.DB, produced int) (LaneVerdict, error) {
	type lane struct{ handler, name string }
	type step struct {
		lane
		n int
	}
	var v LaneVerdict
	names, steps, rows, last := map[string]bool{}, map[step]bool{}, map[step]bool{}, map[lane]int{}
	err := each(ctx, db, func(row *sql.Rows) error {
		var s step
		if err := row.Scan(&s.handler, &s.name, &s.n); err != nil {
			return err
		}
		ordered := s.n == last[s.lane]+1 || s.n == last[s.lane]
		switch again := rows[s]; {
		case s.handler == "tx" && again:
			v.Doubled++
		case again:
			v.Reruns++
		}
		if !ordered {
			v.OutOfOrder++
			if s.handler == "tx" {
				v.TxOutOfOrder++
			}
		}
		names[s.name], steps[step{lane{"", s.name}, s.n}], rows[s], last[s.lane] = true, true, true, s.n
		return nil
	}, `SELECT handler, lane, n FROM steps ORDER BY at`)
	if err != nil {
		return v, fmt.Errorf("read lanes: %w", err)
	}
	v.Lanes, v.Steps, v.Missing = len(names), len(steps), 2*produced-len(rows)
	return v, nil
}

// ReadExcess counts the steps that have more statuses than one for each ordered handler, whatever its key was. A claim
// completes such a status without running the handler again, so that the handlers' rows do not show it.
func ReadExcess(ctx context.Context, db *sql.DB) (n int, err error) {
	const query = `SELECT count(*) FROM (
		SELECT message_id FROM all_statuses WHERE handler_key LIKE 'step-%' GROUP BY message_id HAVING count(*) > 2) AS excess`
	if err = db.QueryRowContext(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("read the steps' statuses: %w", err)
	}
	return n, nil
}
