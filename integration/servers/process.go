package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child process. A goroutine waits for it from start to end.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended and was reaped
	err  error         // how it ended; read after done
}

// startProcess starts a child that the kernel kills if this process dies. Its output is appended to
// the file logPath, in whose directory it runs. account may be nil.
//
// The kernel ties a child to the *thread* that started it, and a thread can end before its process
// does. So the child is started and awaited on one locked thread, which lives as long as the child.
func startProcess(cmd *exec.Cmd, account *syscall.Credential, logPath string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, filepath.Dir(logPath)
	cmd.SysProcAttr = ChildAttributes()
	cmd.SysProcAttr.Credential = account

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		_ = log.Close() // the child has its own copy
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// run runs a command that ends by itself, under the account, and kills it at the limit.
func run(limit time.Duration, cmd *exec.Cmd, account *syscall.Credential, logPath string) error {
	p, err := startProcess(cmd, account, logPath)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(limit):
		return errors.Join(fmt.Errorf("%s: not within %v", cmd.Path, limit), p.end(syscall.SIGKILL, stopTimeout))
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, p.err, logTail(logPath))
	}
	return nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// await repeats probe until it returns nil or the child ends.
func (p *process) await(probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := poll(ctx, func(attempt context.Context) error {
		if !p.running() {
			cancel() // the last attempt
		}
		return probe(attempt)
	})
	if err != nil && !p.running() {
		return fmt.Errorf("ended while starting (%v)", p.err)
	}
	return err
}

// end sends sig and waits. A child that ignores the signal is killed, which is an error.
func (p *process) end(sig syscall.Signal, limit time.Duration) error {
	_ = p.cmd.Process.Signal(sig) // fails if the child has ended already
	select {
	case <-p.done:
		return nil
	case <-time.After(limit):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s ignored %v for %v and was killed", p.cmd.Path, sig, limit)
	}
}

// poll repeats probe until it returns nil or ctx ends.
func poll(ctx context.Context, probe func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := probe(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(pollInterval):
		}
	}
}

// pollFor polls a condition of processes, because the kernel does not announce their changes.
func pollFor(limit time.Duration, condition func() bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return poll(ctx, func(context.Context) error {
		if !condition() {
			return errors.New("condition not met")
		}
		return nil
	})
}

// state is what the operating system says about a process. See processes.
type state struct {
	parent int
	letter byte // such as 'S' for sleeping, 'T' for stopped and 'Z' for ended but not reaped
}

// childrenOf returns the living children of a process.
func childrenOf(parent int) (children []int, err error) {
	all, err := processes()
	for pid, state := range all {
		if state.parent == parent && state.letter != 'Z' {
			children = append(children, pid)
		}
	}
	return children, err
}

// gone reports whether all of these processes have ended, even if they were not reaped.
func gone(pids ...int) bool {
	all, err := processes()
	return err == nil && !slices.ContainsFunc(pids, func(pid int) bool {
		state, found := all[pid]
		return found && state.letter != 'Z' && state.letter != 'X'
	})
}

func stopped(pid int) bool {
	all, err := processes()
	return err == nil && all[pid].letter == 'T'
}

// signalAll sends a signal to processes that may have ended.
func signalAll(sig syscall.Signal, pids ...int) error {
	var failed []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			failed = append(failed, fmt.Errorf("signal %v to process %d: %w", sig, pid, err))
		}
	}
	return errors.Join(failed...)
}

// family is a frozen process with its children. Its methods accept nil, which has no processes.
type family struct {
	pids  []int // the process itself first
	guard *guard
}

// freezeFamily stops the process first and waits until it is stopped. Otherwise it could start a
// further child between the listing and the signals.
func freezeFamily(pid int) (*family, error) {
	if err := signalAll(syscall.SIGSTOP, pid); err != nil {
		return nil, err
	}
	f := &family{pids: []int{pid}}
	if err := pollFor(stopTimeout, func() bool { return stopped(pid) || gone(pid) }); err != nil {
		return f, fmt.Errorf("stop process %d: %w", pid, err)
	}
	children, err := childrenOf(pid)
	if err != nil {
		return f, err
	}
	f.pids = append(f.pids, children...)
	if f.guard, err = startGuard(f.pids); err != nil {
		return nil, errors.Join(err, f.thaw())
	}
	return f, signalAll(syscall.SIGSTOP, children...)
}

// thaw continues the process last. Otherwise PostgreSQL would take a child that is still stopped
// for a hanging one.
func (f *family) thaw() error {
	if f == nil {
		return nil
	}
	woken := errors.Join(signalAll(syscall.SIGCONT, f.pids[1:]...), signalAll(syscall.SIGCONT, f.pids[0]))
	return errors.Join(woken, f.guard.dismiss())
}

// kill kills all processes and waits until they have ended.
func (f *family) kill() error {
	if f == nil {
		return nil
	}
	signalled := signalAll(syscall.SIGKILL, f.pids...)
	ended := pollFor(stopTimeout, func() bool { return gone(f.pids...) })
	return errors.Join(signalled, ended, f.guard.dismiss())
}

// guard kills processes if this process dies. The kernel does that only for direct children. A
// server's own children, once stopped, cannot notice that their parent is gone, and would remain.
type guard struct {
	shell *exec.Cmd
	input io.WriteCloser
}

// startGuard guards these processes.
func startGuard(pids []int) (*guard, error) {
	arguments := make([]string, len(pids))
	for i, pid := range pids {
		arguments[i] = strconv.Itoa(pid)
	}
	return startGuardThat(`kill -KILL "$@" 2>/dev/null`, arguments...)
}

// startGuardThat starts a shell that waits for a line from this process. If its input ends without
// one, this process is dead, and the shell runs the script.
func startGuardThat(script string, arguments ...string) (*guard, error) {
	shell := exec.Command("/bin/sh", append([]string{"-c", "read -r word && exit 0; " + script, "guard"}, arguments...)...)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := shell.StdinPipe()
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("guard of processes: %w", err)
	}
	return &guard{shell, input}, nil
}

// dismiss ends the guard without killing anything. A nil guard is valid.
func (g *guard) dismiss() error {
	if g == nil {
		return nil
	}
	_, err := io.WriteString(g.input, "dismissed\n")
	return wrap("dismiss guard of processes", errors.Join(err, g.shell.Wait()))
}

// logTail returns the end of a log as one line, for an error message.
func logTail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const limit = 1500
	text := strings.ReplaceAll(strings.TrimSpace(string(content)), "\n", " | ")
	if len(text) > limit {
		text = "…" + text[len(text)-limit:]
	}
	return text
}
