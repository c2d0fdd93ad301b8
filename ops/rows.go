package ops

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gorm-inbox/inbox/internal/columns"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/redact"
)

// row is a whole status.
type row struct {
	Status
	lane     *store.Lane
	attempts []Attempt
}

// whole returns the statuses of a list's hits in the same order, without those that are gone. Hits of a list by
// messages have their messages' numbers. The other lists are of open statuses: one that has been completed since is
// gone.
func (o statusSearch) whole(ctx context.Context, hits []hit) ([]row, error) {
	if len(hits) == 0 {
		return nil, nil
	}
	order, ids, numbers := make(map[string]int, len(hits)), make([]string, len(hits)), make([]int64, len(hits))
	for i, h := range hits {
		order[h.ID], ids[i], numbers[i] = i, h.ID, h.Place.Number
	}
	var stored []store.StatusRow
	var err error
	if numbers[0] == 0 {
		stored, err = o.store.OpenStatuses(ctx, o.pool(ctx), ids)
	} else {
		stored, err = o.store.StatusesAmong(ctx, o.pool(ctx), ids, numbers)
	}
	if err != nil {
		return nil, err
	}
	rows, err := o.rows(stored)
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(order[a.ID], order[b.ID]) })
	return rows, err
}

// rows returns statuses as operators see them.
func (o statusSearch) rows(stored []store.StatusRow) ([]row, error) {
	rows := make([]row, len(stored))
	for i := range stored {
		s := &stored[i]
		rows[i] = row{Status: o.status(s), lane: s.Lane}
		if s.Attempts == nil {
			continue
		}
		var err error
		if rows[i].attempts, err = o.attempts(rows[i].Status, *s.Attempts); err != nil {
			return nil, fmt.Errorf("attempts of status %s: %w", s.ID, err)
		}
	}
	return rows, nil
}

func (o statusSearch) status(s *store.StatusRow) Status {
	out := Status{ID: s.ID, MessageID: s.MessageID, Namespace: s.Namespace, HandlerKey: s.HandlerKey,
		State: stateOf(&s.HandlerStatus), Version: int64(s.Version), ErrorCount: s.ErrorCount,
		AbandonedCount: s.AbandonedCount, InterruptedCount: s.InterruptedCount, RequeuedCount: s.RequeuedCount,
		Fingerprint: orZero(s.Fingerprint), CreatedAt: s.CreatedAt, ProcessingStartedAt: orZero(s.ProcessingStartedAt),
		WorkerID: orZero(s.WorkerID), NextAttemptAt: orZero(s.NextAttemptAt), CompletedAt: orZero(s.CompletedAt),
		PoisonedAt: orZero(s.PoisonedAt), Waiting: s.IsWaiting, InLane: s.Lane != nil, Type: s.Type, Source: s.Source,
		ReceivedAt: s.ReceivedAt}
	out.Failing = out.State == StatePending && s.LastError != nil && s.ErrorCount+s.AbandonedCount+s.InterruptedCount > 0
	out.LastError = o.redactor.Error(redact.Value{MessageID: s.MessageID, Type: s.Type, HandlerKey: s.HandlerKey},
		orZero(s.LastError))
	return out
}

// orZero returns what p points to; the zero value for nil.
func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// attempts decodes the attempts that a status keeps.
func (o statusSearch) attempts(of Status, kept string) (attempts []Attempt, err error) {
	var entries []struct {
		At        string  `json:"at"`
		ClaimedAt *string `json:"claimed_at"`
		WorkerID  string  `json:"worker_id"`
		Error     *string `json:"error"`
		Poisoned  bool    `json:"poisoned"`
		Retried   bool    `json:"retried"`
	}
	if err := json.Unmarshal([]byte(kept), &entries); err != nil {
		return nil, err
	}
	about := redact.Value{MessageID: of.MessageID, Type: of.Type, HandlerKey: of.HandlerKey}
	for _, e := range entries {
		a := Attempt{WorkerID: e.WorkerID, Poisoned: e.Poisoned, Retried: e.Retried}
		var at, claimed store.Stamp
		err := at.Scan(e.At)
		if e.ClaimedAt != nil {
			err = errors.Join(err, claimed.Scan(*e.ClaimedAt))
		}
		if err != nil {
			return nil, err
		}
		a.At, a.ClaimedAt = at.Time, claimed.Time
		switch {
		case e.Error != nil:
			a.Error = o.redactor.Error(about, whole(*e.Error))
		case !e.Retried:
			a.Error = "its worker vanished"
		}
		attempts = append(attempts, a)
	}
	return attempts, nil
}

// whole returns an attempt's error without its last word if it was cut: half of a secret would not be recognised.
func whole(text string) string {
	if utf8.RuneCountInString(text) < columns.MaxAttemptError {
		return text
	}
	return text[:strings.LastIndexByte(text, ' ')+1] + "…"
}

func stateOf(s *models.HandlerStatus) State {
	switch {
	case s.CompletedAt != nil && s.Outcome == models.OutcomeDiscarded:
		return StateDiscarded
	case s.CompletedAt != nil && s.Outcome == models.OutcomeSuperseded:
		return StateSuperseded
	case s.CompletedAt != nil:
		return StateCompleted
	case s.IsPoisoned:
		return StatePoisoned
	case s.ProcessingStartedAt != nil:
		return StateProcessing
	default:
		return StatePending
	}
}
