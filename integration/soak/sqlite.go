package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gorm-inbox/inbox/integration/endtoend/workload"
)

// sqlite is the name of the product without a server: processes share a file.
const sqlite = "sqlite"

// file is a SQLite file. It has no server that starts, stops or freezes.
type file struct{ path string }

func openFile(directory string) (database, error) {
	return &file{filepath.Join(directory, "inbox.db")}, nil
}

// DSN has the setup that docs/databases.md recommends.
func (f *file) DSN() string {
	return "file:" + f.path + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=synchronous(FULL)" +
		"&_pragma=foreign_keys(1)&_txlock=immediate"
}

// Close does nothing: the file goes with its directory.
func (f *file) Close() error { return nil }

// writer returns the process that holds the file's write lock, or 0 if none does. In WAL mode the lock is a byte of the
// shared memory's file. The kernel lists who locks it; a process that opened the file to ask would lose its own locks.
func (f *file) writer() (pid int) {
	const writeLock = 120
	info, err := os.Stat(f.path + "-shm")
	if err != nil {
		return 0
	}
	inode := fmt.Sprint(":", info.Sys().(*syscall.Stat_t).Ino)
	list, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(list), "\n") {
		var number, kind, advice, access, place string
		var holder, from, to int
		if n, _ := fmt.Sscan(line, &number, &kind, &advice, &access, &holder, &place, &from, &to); n == 8 &&
			access == "WRITE" && strings.HasSuffix(place, inode) && from <= writeLock && to >= writeLock {
			return holder
		}
	}
	return 0
}

// fileTracks returns the disturbances of workers and of the database where processes share a file. No worker's clock is
// ahead of the others', because what they store has their own times, by which the judge sees what was stored too late.
func (w *world) fileTracks(f *fleet, l *load, frozen time.Duration) []track {
	shared, freezing := w.server.(*file), frozen+3*time.Second
	return []track{
		{name: "workers", pause: 6 * time.Second, cells: []cell{
			{"worker_frozen", func(lasts time.Duration) outcome { return f.freezeLeader(shared, lasts) }, freezing},
			{"writer_frozen", func(lasts time.Duration) outcome { return f.freezeWriter(shared, lasts) }, freezing},
			{"worker_terminated", f.terminateOne, 0}, {"rolling_upgrade", f.upgrade, 0},
			{"renamed_again", f.repeatRenamed(l), 0},
			{"clock_behind", f.setBack, 4 * time.Second}, {"processes_killed", f.killProcesses, 0},
			{"handler_paused", w.pauseHandler(l), 4 * time.Second}, {"poisoned_retried", w.retryPoisoned(l), 0},
			{"replicas_down", func(lasts time.Duration) outcome { return f.killAll(lasts, l) },
				w.settings.Retention + 5*time.Second},
		}},
		{name: w.product.title, pause: 15 * time.Second, cells: w.fileCells()},
	}
}

// fileCells returns the disturbances of the file.
func (w *world) fileCells() []cell {
	cells := []cell{{"write_lock_held", w.holdWriteLock, w.frozen() + 3*time.Second}}
	if w.disk != nil {
		cells = append(cells, cell{"disk_full", w.fillDisk, 5 * time.Second})
	}
	return cells
}

// blocked is an attempt that failed, or waited for longer than the load's own transactions keep others waiting.
func blocked(a attempt) bool { return failed(a) || a.ended.Sub(a.began) >= 4*time.Second }

// holdWriteLock keeps all others from writing, like a process with a long transaction.
func (w *world) holdWriteLock(lasts time.Duration) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), lasts+askTimeout)
	defer cancel()
	conn, err := w.db.Conn(ctx)
	if err != nil {
		w.logf("hold the write lock: %v", err)
		return outcome{}
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		w.logf("hold the write lock: %v", err)
		return outcome{}
	}
	began := time.Now()
	done := w.outage(w.product.title, "is locked by another process", lasts, func() error { return nil },
		func() error { _, err := conn.ExecContext(ctx, "ROLLBACK"); return err })
	return outcome{done, w.recovered(began, blocked)}
}

// freezePatience is how long a worker is looked for that can be frozen as it has to be.
const freezePatience = 10 * time.Second

// freezeWhere freezes the first worker that is as told at that moment, and keeps it from all other disturbances until
// thaw.
func (f *fleet) freezeWhere(fits func(pid int) bool) (frozen *slot, worker *workload.Worker) {
	f.world.await("a worker is frozen", time.Now(), freezePatience, func() bool {
		for _, s := range f.slots {
			if current := s.current(); current == nil || !fits(current.PID()) {
				continue
			}
			found, err := s.with(false, func(candidate *workload.Worker) error {
				if err := candidate.Freeze(); err != nil {
					return err
				}
				pause(context.Background(), 10*time.Millisecond) // until none of its threads runs any more
				if fits(candidate.PID()) {
					s.frozen, worker = true, candidate
					return nil
				}
				return candidate.Thaw()
			})
			if err != nil && found != nil {
				f.world.logf("worker %d could not be frozen: %v", s.number, err)
			}
			if worker != nil {
				frozen = s
				return true
			}
		}
		return false
	})
	return frozen, worker
}

// thaw continues a worker that freezeWhere has frozen.
func (f *fleet) thaw(s *slot, worker *workload.Worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = false
	if err := worker.Thaw(); err != nil {
		f.failures.Add(1)
		f.world.logf("worker %d could not be thawed: %v", s.number, err)
	}
}

// freezeLeader freezes a worker that has claims and not the write lock. It is felt if another takes them over.
func (f *fleet) freezeLeader(shared *file, lasts time.Duration) outcome {
	s, worker := f.freezeWhere(func(pid int) bool {
		n, ok := f.world.claims(pid)
		return ok && n > 0 && shared.writer() != pid
	})
	if worker == nil {
		return outcome{}
	}
	f.world.logf("worker %d frozen for %.1fs", s.number, lasts.Seconds())
	began := time.Now()
	felt, took := f.world.takenOver(worker.PID(), lasts)
	pause(context.Background(), time.Until(began.Add(lasts)))
	f.thaw(s, worker)
	return outcome{true, func() (bool, time.Duration) { return felt, took }}
}

// freezeWriter freezes a worker in a transaction that has the write lock. It is felt if an accept failed or waited.
func (f *fleet) freezeWriter(shared *file, lasts time.Duration) outcome {
	s, worker := f.freezeWhere(func(pid int) bool { return shared.writer() == pid })
	if worker == nil {
		return outcome{}
	}
	began := time.Now()
	done := f.world.outage(fmt.Sprintf("worker %d", s.number), "frozen with the write lock", lasts, func() error {
		if shared.writer() != worker.PID() {
			return errors.New("it has lost the write lock")
		}
		return nil
	}, func() error { f.thaw(s, worker); return nil })
	return outcome{done, f.world.recovered(began, blocked)}
}

// killProcesses kills replicas and cleaner. It is felt if one of them had claims, and others take them over.
func (f *fleet) killProcesses(time.Duration) outcome {
	f.world.logf("all processes killed")
	var killed []int
	for _, s := range f.slots {
		if worker, err := s.with(true, (*workload.Worker).Kill); err == nil && worker != nil {
			killed = append(killed, worker.PID())
		}
	}
	return outcome{len(killed) > 1, func() (felt bool, took time.Duration) {
		began := time.Now()
		for _, pid := range killed {
			held, _ := f.world.takenOver(pid, recoveryPatience)
			felt = felt || held
		}
		return felt, time.Since(began)
	}}
}

// behind is how far a worker's clock is set back. It is shorter than retention, which each process judges by its own
// clock.
const behind = 10 * time.Second

// setBack sets one replica's clock back for a time, and right. It is felt if its heartbeats had both times.
func (f *fleet) setBack(lasts time.Duration) outcome {
	worker, done := f.disturb("has a clock that is set back", false, func(*workload.Worker) error { return nil })
	if !done {
		return outcome{}
	}
	felt := true
	for _, ahead := range []time.Duration{-behind, 0} {
		if err := worker.SetClock(ahead); err != nil || !worker.Running() {
			return outcome{}
		}
		_, seen := f.world.await("a heartbeat with the clock's time", time.Now(), jumpPatience, func() bool {
			from := time.Now().Add(ahead - behind/2).UTC()
			return !worker.Running() || f.world.any(`SELECT 1 FROM inbox_workers
				WHERE pid = $1 AND heartbeat_at > $2 AND heartbeat_at < $3`, worker.PID(), from, from.Add(behind))
		})
		if felt = felt && seen && worker.Running(); ahead != 0 {
			pause(context.Background(), lasts)
		}
	}
	return outcome{worker.Running(), f.world.resumed(felt, effectAfter)}
}
