package workload

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Ledger records what was produced. Verdict compares it with the database. It is safe for
// concurrent use.
type Ledger struct {
	mu  sync.Mutex
	ids []string
	bad int
}

// Produced records messages that the inbox must deliver from now on: their producer got an
// acknowledgement, or retries until it gets one. Each ID is recorded once.
func (l *Ledger) Produced(ids ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids = append(l.ids, ids...)
}

// ProducedBad records n records that cannot be decoded into messages.
func (l *Ledger) ProducedBad(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bad += n
}

// Count returns how many messages were produced so far.
func (l *Ledger) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ids)
}

func (l *Ledger) snapshot() (ids []string, bad int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids[:len(l.ids):len(l.ids)], l.bad
}

// Progress is how far the inbox has come, as counts of rows.
type Progress struct {
	Messages, Completed, Poisoned, Pending, Processing, Rejected int
	// Deleted counts messages that cleanup has deleted. The other counts include them and their statuses.
	Deleted int
}

// Ended returns how many statuses and records are finished.
func (p Progress) Ended() int { return p.Completed + p.Poisoned + p.Rejected }

// progressQuery returns a row for what is there and one for what was deleted. It does not read the views, which some
// servers build completely before they count.
const progressQuery = `
SELECT (SELECT count(*) FROM inbox_messages WHERE type = '` + JobType + `'), count(completed_at), count(CASE WHEN is_poisoned THEN 1 END),
	count(CASE WHEN completed_at IS NULL AND NOT is_poisoned THEN 1 END), count(processing_started_at),
	(SELECT count(*) FROM inbox_rejected_messages), 0
FROM inbox_handler_statuses WHERE handler_key IN ('` + EffectKey + `', '` + RunKey + `')
UNION ALL
SELECT (SELECT count(*) FROM deleted_messages WHERE type = '` + JobType + `'), count(completed_at), count(CASE WHEN is_poisoned THEN 1 END),
	count(CASE WHEN completed_at IS NULL AND NOT is_poisoned THEN 1 END), count(processing_started_at),
	0, (SELECT count(*) FROM deleted_messages)
FROM deleted_statuses WHERE handler_key IN ('` + EffectKey + `', '` + RunKey + `')`

// ReadProgress reads the progress from the database.
func ReadProgress(ctx context.Context, db *sql.DB) (p Progress, err error) {
	err = each(ctx, db, func(rows *sql.Rows) error {
		var part Progress
		err := rows.Scan(&part.Messages, &part.Completed, &part.Poisoned, &part.Pending, &part.Processing, &part.Rejected,
			&part.Deleted)
		p.Messages += part.Messages
		p.Completed += part.Completed
		p.Poisoned += part.Poisoned
		p.Pending += part.Pending
		p.Processing += part.Processing
		p.Rejected += part.Rejected
		p.Deleted += part.Deleted
		return err
	}, progressQuery)
	if err != nil {
		return p, fmt.Errorf("read progress: %w", err)
	}
	return p, nil
}

// Settled reports whether everything produced so far is finished.
func (l *Ledger) Settled(p Progress) bool {
	ids, bad := l.snapshot()
	return p.Messages == len(ids) && p.Pending == 0 && p.Completed+p.Poisoned == handlers*len(ids) && p.Rejected == bad
}

// Verdict compares the ledger with the database after everything is settled.
type Verdict struct {
	Produced, Accepted  int
	Completed, Poisoned int // statuses
	Pending             int
	// Missing counts produced messages that are not stored, or lack some of their statuses, or have
	// a completed status without its effect. It also counts bad records that are not kept.
	Missing int
	// Doubled counts messages whose transactional effect happened twice, or exists although the
	// status is not completed.
	Doubled int
	// Misjudged counts messages that were poisoned although their job did not ask for it, or
	// completed although it did.
	Misjudged int
	// Unknown counts stored messages that were never produced.
	Unknown int
	// DeletedOpen counts statuses that cleanup has deleted although they were pending or poisoned.
	DeletedOpen int
	// Reruns counts runs of the plain handler beyond those that its failures explain. Crashes and
	// lost responses cause them. They are allowed: handlers have to be idempotent because of them.
	Reruns int
}

// Broken reports whether a promise was broken or something is still pending.
func (v Verdict) Broken() bool {
	return v.Missing+v.Doubled+v.Misjudged+v.Unknown+v.DeletedOpen+v.Pending > 0 || v.Accepted != v.Produced
}

// account is what was produced and what the database holds of one message.
type account struct {
	produced                               bool
	stored                                 int
	poisonEffect, poisonRun                bool // its job asks for that
	statuses, completed, poisoned, pending int
	effectCompleted, runCompleted          bool
	effectPoisoned, runPoisoned            bool
	effects                                int
	began, failed, done                    int // runs
}

// accounts returns one for each message that was produced or stored.
func (l *Ledger) accounts(ctx context.Context, db *sql.DB) (map[string]*account, error) {
	ids, _ := l.snapshot()
	all := make(map[string]*account, len(ids))
	of := func(id string) *account {
		if all[id] == nil {
			all[id] = &account{}
		}
		return all[id]
	}
	for _, id := range ids {
		of(id).produced = true
	}
	messages := each(ctx, db, func(rows *sql.Rows) error {
		var id string
		var content []byte
		var job Job
		if err := rows.Scan(&id, &content); err != nil {
			return err
		}
		err := json.Unmarshal(content, &job)
		a := of(id)
		a.stored, a.poisonEffect, a.poisonRun = a.stored+1, job.Poison, job.Poison || job.PoisonRun
		return err
	}, `SELECT id, content FROM job_messages`)
	statuses := each(ctx, db, func(rows *sql.Rows) error {
		var id, key string
		var completed, poisoned bool
		if err := rows.Scan(&id, &key, &completed, &poisoned); err != nil {
			return err
		}
		a := of(id)
		a.statuses++
		switch {
		case completed && !poisoned:
			a.completed++
		case poisoned && !completed:
			a.poisoned++
			a.effectPoisoned = a.effectPoisoned || key == EffectKey
			a.runPoisoned = a.runPoisoned || key == RunKey
		case !completed:
			a.pending++
		}
		a.effectCompleted = a.effectCompleted || completed && key == EffectKey
		a.runCompleted = a.runCompleted || completed && key == RunKey
		return nil
	}, `SELECT message_id, handler_key, completed_at IS NOT NULL, is_poisoned FROM job_statuses`)
	effects := each(ctx, db, func(rows *sql.Rows) error {
		var id string
		err := rows.Scan(&id)
		of(id).effects++
		return err
	}, `SELECT message_id FROM effects`)
	runs := each(ctx, db, func(rows *sql.Rows) error {
		var id, step string
		err := rows.Scan(&id, &step)
		switch a := of(id); step {
		case stepBegan:
			a.began++
		case stepFailed:
			a.failed++
		case stepDone:
			a.done++
		}
		return err
	}, `SELECT message_id, step FROM runs`)
	return all, errors.Join(messages, statuses, effects, runs)
}

// missing, doubled and misjudged are as in Verdict.
func (a *account) missing() bool {
	return a.produced && (a.stored == 0 || a.statuses != handlers || a.effectCompleted && a.effects == 0 ||
		a.runCompleted && a.done == 0)
}

func (a *account) doubled() bool { return a.effects > 1 || a.effects > 0 && !a.effectCompleted }

func (a *account) misjudged() bool {
	wrong := func(asked, completed, poisoned bool) bool { return asked && completed || !asked && poisoned }
	return a.stored > 0 && (wrong(a.poisonEffect, a.effectCompleted, a.effectPoisoned) ||
		wrong(a.poisonRun, a.runCompleted, a.runPoisoned))
}

// Verdict compares what was produced with what the database holds.
func (l *Ledger) Verdict(ctx context.Context, db *sql.DB) (Verdict, error) {
	ids, bad := l.snapshot()
	v := Verdict{Produced: len(ids)}
	all, err := l.accounts(ctx, db)
	var rejected int
	if err == nil {
		err = db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM inbox_rejected_messages),
			(SELECT count(*) FROM deleted_statuses WHERE completed_at IS NULL)`).Scan(&rejected, &v.DeletedOpen)
	}
	if err != nil {
		return v, fmt.Errorf("read verdict: %w", err)
	}
	count := func(counter *int, is bool) {
		if is {
			*counter++
		}
	}
	for _, a := range all {
		v.Accepted += a.stored
		v.Completed += a.completed
		v.Poisoned += a.poisoned
		v.Pending += a.pending
		v.Reruns += max(a.began-a.failed-1, 0)
		count(&v.Missing, a.missing())
		count(&v.Doubled, a.doubled())
		count(&v.Misjudged, a.misjudged())
		count(&v.Unknown, !a.produced)
	}
	v.Missing += max(bad-rejected, 0)
	v.Unknown += max(rejected-bad, 0)
	return v, nil
}

// Suspects describes some of the messages that cause a broken verdict, with their rows.
func (l *Ledger) Suspects(ctx context.Context, db *sql.DB) (suspects []string, err error) {
	all, err := l.accounts(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("read suspects: %w", err)
	}
	const most = 20
	for _, id := range slices.Sorted(maps.Keys(all)) {
		a := all[id]
		if !a.missing() && !a.doubled() && !a.misjudged() && a.produced && a.stored == 1 && a.pending == 0 {
			continue
		}
		line := fmt.Sprintf("%s %+v", id, *a)
		statuses := each(ctx, db, func(rows *sql.Rows) error {
			var key, lastError string
			var completed, poisoned, processing bool
			var failures, abandoned, version int
			err := rows.Scan(&key, &completed, &poisoned, &failures, &abandoned, &version, &processing, &lastError)
			line += fmt.Sprintf("; %s completed=%t poisoned=%t errors=%d abandoned=%d version=%d processing=%t last_error=%.200s", key,
				completed, poisoned, failures, abandoned, version, processing, lastError)
			return err
		}, `SELECT handler_key, completed_at IS NOT NULL, is_poisoned, error_count, abandoned_count, version,
			processing_started_at IS NOT NULL, COALESCE(last_error, '') FROM job_statuses WHERE message_id = $1`, id)
		runs := each(ctx, db, func(rows *sql.Rows) error {
			var step string
			var pid int
			err := rows.Scan(&step, &pid)
			line += fmt.Sprintf("; %s/%d", step, pid)
			return err
		}, `SELECT step, pid FROM runs WHERE message_id = $1 ORDER BY at`, id)
		if err := errors.Join(statuses, runs); err != nil {
			return nil, fmt.Errorf("read suspects: %w", err)
		}
		if suspects = append(suspects, line); len(suspects) == most {
			break
		}
	}
	return suspects, nil
}
