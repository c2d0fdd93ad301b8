package storetest

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	"gorm.io/gorm"
	"pgregory.net/rapid"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/models"
)

type completeStep struct {
	Targets []target
	Outcome models.Outcome
	How     string // together, unlocked, or each alone in a transaction that is committed or rolled back
	Dies    bool   // before it advances the lanes
}

func drawComplete(t *rapid.T) operation {
	return completeStep{
		Targets: targets.Draw(t, "targets"),
		Outcome: rapid.SampledFrom([]models.Outcome{models.OutcomeProcessed, models.OutcomeProcessed,
			models.OutcomeSuperseded}).Draw(t, "outcome"),
		How:  rapid.SampledFrom([]string{"together", "together", "unlocked", "committed", "rolled back"}).Draw(t, "how"),
		Dies: rapid.IntRange(0, 3).Draw(t, "dies") == 3,
	}
}

func (c completeStep) run(m *machine) {
	var completions []store.Completion
	for _, ref := range m.picked(c.Targets) {
		completions = append(completions, store.Completion{StatusID: ref.StatusID, Version: ref.Version,
			Locator: ref.Locator,
			Outcome: c.Outcome})
	}
	m.complete(completions, c.How, c.Dies)
}

func (m *machine) complete(completions []store.Completion, how string, dies bool) {
	m.Helper()
	expected := make([]bool, len(completions))
	for i, completion := range completions {
		_, expected[i] = m.model.current(completion.StatusID, completion.Version)
	}
	applied, err := make([]bool, len(completions)), error(nil)
	switch how {
	case "together":
		applied, err = m.store.Complete(m.ctx, completions, m.model.now, store.AwaitLocked)
	case "unlocked":
		applied, err = m.store.Complete(m.ctx, completions, m.model.now, store.SkipLocked)
	default:
		if !m.inTx(how, func(tx *gorm.DB) {
			applied, err = m.store.CompleteTx(m.ctx, tx, completions, m.model.now)
			require.NoError(m, err)
		}) {
			require.Equal(m, expected, applied)
			return
		}
	}
	require.NoError(m, err)
	require.Equal(m, expected, applied)
	var ended []string
	for _, completion := range completions {
		if m.model.complete(completion, m.model.now) {
			ended = append(ended, completion.StatusID)
		}
	}
	m.Logf("applied %v", applied)
	m.advanceAfter(ended, dies)
}

type settleStep struct {
	Targets  []target
	How      string // failed, poisoned, snoozed, released
	Delay    time.Duration
	Unlocked bool
	Dies     bool // before it advances the lanes
}

func drawSettle(t *rapid.T) operation {
	return settleStep{
		Targets:  targets.Draw(t, "targets"),
		How:      rapid.SampledFrom([]string{"failed", "poisoned", "snoozed", "released"}).Draw(t, "how"),
		Delay:    delays.Draw(t, "delay"),
		Unlocked: rapid.Bool().Draw(t, "unlocked"),
		Dies:     rapid.IntRange(0, 3).Draw(t, "dies") == 3,
	}
}

func (s settleStep) run(m *machine) {
	var settlements []store.Settlement
	for _, ref := range m.picked(s.Targets) {
		m.steps++
		text, next := fmt.Sprintf("failure %d", m.steps), m.model.now.Add(s.Delay)
		settled := store.Settlement{StatusID: ref.StatusID, HandlerKey: ref.HandlerKey, Version: ref.Version,
			Locator: ref.Locator, ErrorCount: ref.ErrorCount, AbandonedCount: ref.AbandonedCount}
		switch s.How {
		case "failed":
			settled.ErrorCount, settled.AbandonedCount, settled.LastError, settled.NextAttemptAt = ref.ErrorCount+
				1, 0, &text, &next
		case "poisoned": // with a time that must not be stored
			settled.ErrorCount, settled.LastError, settled.NextAttemptAt, settled.Poisoned = ref.ErrorCount+1, &text, &next, true
		case "snoozed":
			settled.AbandonedCount, settled.NextAttemptAt = 0, &next
		}
		settlements = append(settlements, settled)
	}
	m.settle(settlements, s.Unlocked, s.Dies)
}

func (m *machine) settle(settlements []store.Settlement, unlocked, dies bool) {
	m.Helper()
	locked := store.AwaitLocked
	if unlocked {
		locked = store.SkipLocked
	}
	applied, err := m.store.Settle(m.ctx, settlements, locked)
	require.NoError(m, err)
	expected := make([]bool, len(settlements))
	var ended []string
	for i, settlement := range settlements {
		if expected[i] = m.model.settle(settlement); expected[i] {
			ended = append(ended, settlement.StatusID)
		}
	}
	require.Equal(m, expected, applied)
	m.Logf("applied %v", applied)
	m.advanceAfter(ended, dies)
}
