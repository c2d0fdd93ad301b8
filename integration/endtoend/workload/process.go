package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorm-inbox/inbox/handler"
)

// Worker is a separate process that runs the inbox. Its methods are safe for concurrent use.
type Worker struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the process has ended
	err  error         // how it ended; read after done

	mu    sync.Mutex
	alive *os.File // the other end of its standard input
}

// startPatience is how long a worker may take to start.
const startPatience = 2 * time.Minute

// StartWorker runs this program again as a worker, see MainIfWorker, and waits until it has
// started. Its log goes to a file in dir. The worker dies with this process.
func StartWorker(s Settings, dir string) (*Worker, error) {
	settings, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	log, err := os.CreateTemp(dir, "worker-*.log")
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	defer log.Close()
	input, alive, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	defer input.Close()
	said, output, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("worker: %w", err), alive.Close())
	}
	defer said.Close()

	w := &Worker{cmd: exec.Command(program), log: log.Name(), done: make(chan struct{}), alive: alive}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+string(settings))
	w.cmd.Stdin, w.cmd.Stdout, w.cmd.Stderr = input, output, log
	w.cmd.SysProcAttr = attributes()
	started := make(chan error, 1)
	go w.run(started, output)
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("worker: %w", err), alive.Close())
	}
	if err := said.SetReadDeadline(time.Now().Add(startPatience)); err != nil {
		return nil, errors.Join(fmt.Errorf("worker: %w", err), w.Kill())
	}
	line, err := bufio.NewReader(said).ReadString('\n')
	if strings.TrimSpace(line) != readyLine {
		return nil, errors.Join(fmt.Errorf("worker did not start: %q, %w; its log: %s", line, err, w.LogTail()), w.Kill())
	}
	return w, nil
}

// run starts the process and waits for it on one thread, because the kernel ties a child's life to
// the thread that started it.
func (w *Worker) run(started chan<- error, output *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := w.cmd.Start()
	_ = output.Close() // the child has its own copy
	started <- err
	if err != nil {
		return
	}
	w.err = w.cmd.Wait()
	w.release()
	close(w.done)
}

func (w *Worker) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alive != nil {
		_ = w.alive.Close()
		w.alive = nil
	}
}

// PID returns the process ID.
func (w *Worker) PID() int { return w.cmd.Process.Pid }

// Running reports whether the process has not ended.
func (w *Worker) Running() bool {
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// Kill kills the process with SIGKILL, even while it is frozen, and waits until it is gone.
func (w *Worker) Kill() error {
	if err := w.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-w.done
	return nil
}

// Freeze stops the process with SIGSTOP. Thaw continues it.
func (w *Worker) Freeze() error { return w.signal(syscall.SIGSTOP) }

// Thaw continues a frozen process.
func (w *Worker) Thaw() error { return w.signal(syscall.SIGCONT) }

// Terminate asks the process to stop gracefully and does not wait.
func (w *Worker) Terminate() error { return w.signal(syscall.SIGTERM) }

// Interrupt sends the signal of ^C, which has the same effect.
func (w *Worker) Interrupt() error { return w.signal(syscall.SIGINT) }

// SetClock sets the process's own clock ahead of the right time, or behind it if ahead is negative.
func (w *Worker) SetClock(ahead time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.alive == nil {
		return nil
	}
	if _, err := fmt.Fprintln(w.alive, ahead); err != nil {
		return fmt.Errorf("set the clock of worker %d: %w", w.PID(), err)
	}
	return nil
}

// Wait waits for the process to end. An exit status other than 0 is an error.
func (w *Worker) Wait(patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
		return fmt.Errorf("worker %d still runs after %s; its log: %s", w.PID(), patience, w.LogTail())
	}
	if w.err != nil {
		return fmt.Errorf("worker %d: %w; its log: %s", w.PID(), w.err, w.LogTail())
	}
	return nil
}

func (w *Worker) signal(sig syscall.Signal) error {
	if !w.Running() {
		return nil
	}
	if err := w.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to worker %d: %w", sig, w.PID(), err)
	}
	return nil
}

// PeakMemory returns the process's peak resident memory in KiB as the kernel reports it, or 0 if it
// does not.
func (w *Worker) PeakMemory() (kib int64) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.PID()))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	_, _ = fmt.Sscan(after, &kib)
	return kib
}

// LogTail returns the end of the process's log.
func (w *Worker) LogTail() string {
	content, err := os.ReadFile(w.log)
	if err != nil {
		return err.Error()
	}
	const most = 4000
	if len(content) > most {
		content = content[len(content)-most:]
	}
	return filepath.Base(w.log) + ":\n" + string(content)
}

// Counters returns the worker's counters, which are known after a graceful stop.
func (w *Worker) Counters() (handler.Counts, error) {
	var counters handler.Counts
	content, err := os.ReadFile(w.log)
	if err != nil {
		return counters, err
	}
	_, after, found := strings.Cut(string(content), countersLine)
	if !found {
		return counters, fmt.Errorf("worker %d has not told its counters; its log: %s", w.PID(), w.LogTail())
	}
	line, _, _ := strings.Cut(after, "\n")
	return counters, json.Unmarshal([]byte(line), &counters)
}

// Logged returns how many lines of the log contain this text.
func (w *Worker) Logged(text string) (int, error) {
	content, err := os.ReadFile(w.log)
	return strings.Count(string(content), text), err
}

// Complaints returns log output that no worker may ever have: races and panics.
func (w *Worker) Complaints() (string, error) {
	content, err := os.ReadFile(w.log)
	if err != nil {
		return "", err
	}
	for _, sign := range []string{"DATA RACE", "panic:", "fatal error:"} {
		if at := bytes.Index(content, []byte(sign)); at >= 0 {
			return string(content[at:min(at+4000, len(content))]), nil
		}
	}
	return "", nil
}
