package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
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
// the file logPath. account may be nil.
//
// The kernel ties a child to the *thread* that started it, and a thread can end before its process
// does. So the child is started and awaited on one locked thread, which lives as long as the child.
func startProcess(cmd *exec.Cmd, account *account, logPath string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", cmd.Path, err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes(account)

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

// run runs a command that ends by itself, under the account. When ctx ends, the command and its
// children are killed.
func run(ctx context.Context, cmd *exec.Cmd, account *account, logPath string) error {
	p, err := startProcess(cmd, account, logPath)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("%s: %w", cmd.Path, ctx.Err())
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", cmd.Path, p.err, logTail(logPath))
	}
	return nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// signal ignores that the child may have ended already, because callers check done next.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// waitUntil repeats probe until it returns nil, the child ends, or ctx ends.
func (p *process) waitUntil(ctx context.Context, probe func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := probe(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("ended while starting (%v)", p.err)
		case <-ctx.Done():
			return fmt.Errorf("not ready in time: %w", err)
		case <-ticker.C:
		}
	}
}

// end sends sig and waits. A child that ignores the signal is killed, which is an error.
func (p *process) end(sig syscall.Signal, limit time.Duration) error {
	p.signal(sig)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("%s ignored %v for %v and was killed", p.cmd.Path, sig, limit)
	}
}

// waitEnd waits for a child that was told to end.
func (p *process) waitEnd() error {
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s did not end within %v", p.cmd.Path, stopTimeout)
	}
}

// await polls a condition of processes, because their changes are not announced.
func await(what string, limit time.Duration, condition func() bool) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	deadline := time.Now().Add(limit)
	for !condition() {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v", what, limit)
		}
		<-ticker.C
	}
	return nil
}

// signalAll sends a signal to processes that may not be children of this process.
func signalAll(pids []int, sig syscall.Signal) error {
	var failed []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			failed = append(failed, fmt.Errorf("signal %v to process %d: %w", sig, pid, err))
		}
	}
	return errors.Join(failed...)
}

// environmentWithout returns this process's environment without the variables whose names start
// with any of the prefixes, and with added.
func environmentWithout(prefixes []string, added ...string) []string {
	var kept []string
next:
	for _, variable := range os.Environ() {
		for _, prefix := range prefixes {
			if strings.HasPrefix(variable, prefix) {
				continue next
			}
		}
		kept = append(kept, variable)
	}
	return append(kept, added...)
}
