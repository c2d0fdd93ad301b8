package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is this program in a process of its own, where IsWorker holds. It has one owner.
type Process struct {
	Name string
	// Files are inherited by the process, from file descriptor 3 on.
	Files []*os.File

	config string
	log    *os.File
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{} // closed when the process has exited; err is set then
	err    error
	killed bool // by Kill
}

// Start starts the process, also again.
func (p *Process) Start() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(os.Environ(), workerVariable+"="+p.config)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.ExtraFiles = p.Files
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.exited, p.killed = make(chan struct{}), false
	go func(cmd *exec.Cmd, exited chan struct{}) {
		p.err = cmd.Wait()
		close(exited)
	}(p.cmd, p.exited)
	return nil
}

// Exited reports whether the process has exited.
func (p *Process) Exited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// endedBy reports whether a signal ended the process.
func (p *Process) endedBy(signal syscall.Signal) bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// Unexpected returns an error if the process has exited by itself.
func (p *Process) Unexpected() error {
	if !p.Exited() {
		return nil
	}
	return fmt.Errorf("%s has ended by itself (%v), its log is %s", p.Name, p.err, p.log.Name())
}

// Kill ends the process as a crash would: nothing in it runs after that.
func (p *Process) Kill() error {
	if err := p.Unexpected(); err != nil {
		return err
	}
	p.killed = true
	err := p.cmd.Process.Kill()
	<-p.exited
	return err
}

// Stop ends the process as a deployment would, by SIGTERM. An exit status other than 0 is an error; a
// process that does not exit in time is killed. A process that was never started is left alone.
func (p *Process) Stop(ctx context.Context) error {
	if p.exited == nil {
		return nil
	}
	if err := p.Unexpected(); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(fmt.Errorf("stop %s: %w", p.Name, err), p.Kill())
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	select {
	case <-p.exited:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s did not stop after SIGTERM", p.Name), p.Kill())
	}
	// One that was just started again may not handle signals yet, and has nothing to stop.
	if p.err != nil && !p.endedBy(syscall.SIGTERM) {
		return fmt.Errorf("%s stopped with %w, its log is %s", p.Name, p.err, p.log.Name())
	}
	return nil
}

// close kills the process if it still runs, and closes its log.
func (p *Process) close() error {
	if p.exited != nil && !p.Exited() {
		_ = p.Kill()
	}
	return p.log.Close()
}

// Workers are processes that are alike but for their names. They have one owner.
type Workers []*Process

// Workers prepares a process for each name, which logs to a file of the environment. config returns
// the argument of Work in that process.
func (e *Environment) Workers(names []string, config func(name string) any) (Workers, error) {
	var workers Workers
	for _, name := range names {
		text, err := encode(config(name))
		if err != nil {
			return nil, err
		}
		log, err := os.Create(e.File(name + ".log"))
		if err != nil {
			return nil, err
		}
		p := &Process{Name: name, config: text, log: log}
		e.Cleanup(func(context.Context, bool) error { return p.close() })
		workers = append(workers, p)
	}
	return workers, nil
}

// WorkerNames returns worker-1 to worker-n.
func WorkerNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("worker-%d", i+1)
	}
	return names
}

// Start starts all.
func (w Workers) Start() error {
	for _, p := range w {
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// RestartKilled starts those again that have killed themselves, and calls restarted for each. Any
// other exit is an error.
func (w Workers) RestartKilled(restarted func(p *Process)) error {
	for _, p := range w {
		switch {
		case !p.Exited():
			continue
		case p.killed || !p.endedBy(syscall.SIGKILL):
			return p.Unexpected()
		}
		if err := p.Start(); err != nil {
			return err
		}
		restarted(p)
	}
	return nil
}

// Unexpected returns the error of the first worker that has exited by itself.
func (w Workers) Unexpected() error {
	for _, p := range w {
		if err := p.Unexpected(); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops all at once and waits for them, as Process.Stop does.
func (w Workers) Stop(ctx context.Context) error {
	problems := make([]error, len(w))
	var stopping sync.WaitGroup
	for i, p := range w {
		stopping.Go(func() { problems[i] = p.Stop(ctx) })
	}
	stopping.Wait()
	return errors.Join(problems...)
}
