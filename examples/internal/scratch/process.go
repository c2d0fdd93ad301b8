package scratch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is this very program in a process of its own, where IsWorker holds. It
// has one owner.
type Process struct {
	Name string
	// Env is what it gets beside the environment, at each start.
	Env []string

	log    *os.File
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{} // closed when it has, err is set then
	err    error
	killed bool // by Kill
}

// NewProcess prepares a process; its log goes to a file.
func NewProcess(name, logFile string) (*Process, error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	return &Process{Name: name, log: log}, nil
}

// Start starts it, also again.
func (p *Process) Start() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(append(os.Environ(), p.Env...), roleVariable+"=worker")
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
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

// Exited reports whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// killedItself reports whether the process has ended by a SIGKILL that did not
// come from Kill.
func (p *Process) killedItself() bool {
	if !p.Exited() || p.killed {
		return false
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Unexpected is the error of a process that ended without being told to; nil
// if it runs.
func (p *Process) Unexpected() error {
	if !p.Exited() {
		return nil
	}
	return fmt.Errorf("%s has ended by itself (%v), its log is %s", p.Name, p.err, p.log.Name())
}

// Kill ends it as a crash would: nothing in it runs after that.
func (p *Process) Kill() error {
	if err := p.Unexpected(); err != nil {
		return err
	}
	p.killed = true
	err := p.cmd.Process.Kill()
	<-p.exited
	return err
}

// Stop ends it as a deploy would, by SIGTERM. An exit status other than 0 is
// an error; a process that does not end in time is killed. Without a Start it
// does nothing.
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
		return errors.Join(fmt.Errorf("%s did not stop when told to", p.Name), p.Kill())
	}
	if p.err != nil && !p.terminated() {
		return fmt.Errorf("%s stopped with %w, its log is %s", p.Name, p.err, p.log.Name())
	}
	return nil
}

// terminated reports whether SIGTERM ended the process before it listened for
// it: it had just been started again, and had nothing to stop yet.
func (p *Process) terminated() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// Close ends the process if it still runs, and closes the log.
func (p *Process) Close() error {
	if p.exited != nil && !p.Exited() {
		_ = p.Kill()
	}
	return p.log.Close()
}
