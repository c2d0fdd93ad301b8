package main

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

// roleVariable tells the program, in a process of its own, to be a worker.
const roleVariable = "TRANSFERS_ROLE"

// Child is a worker in a process of its own.
type Child struct {
	cfg    Config
	log    *os.File
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{} // closed when it has, err is set then
	err    error
}

// NewChild prepares a worker; its log goes to a file.
func NewChild(cfg Config, logFile string) (*Child, error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	return &Child{cfg: cfg, log: log}, nil
}

// Start starts this very program again, as a worker.
func (c *Child) Start() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start %s: %w", c.cfg.Name, err)
	}
	c.cmd = exec.Command(program)
	c.cmd.Env = append(append(os.Environ(), roleVariable+"=worker"), c.cfg.Env()...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return fmt.Errorf("start %s: %w", c.cfg.Name, err)
	}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.cfg.Name, err)
	}
	c.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		c.err = cmd.Wait()
		close(exited)
	}(c.cmd, c.exited)
	return nil
}

// unexpected is the error of a process that ended without being told to.
func (c *Child) unexpected() error {
	return fmt.Errorf("%s has ended by itself (%v), its log is %s", c.cfg.Name, c.err, c.log.Name())
}

// Exited reports whether the process has ended.
func (c *Child) Exited() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// Kill ends it as a crash would: nothing in it runs after that.
func (c *Child) Kill() error {
	if c.Exited() {
		return c.unexpected()
	}
	err := c.cmd.Process.Kill()
	<-c.exited
	return err
}

// Stop ends it as a deploy would, by SIGTERM. An exit status other than 0 is
// an error; a worker that does not end in time is killed. Without a Start it
// does nothing.
func (c *Child) Stop(ctx context.Context) error {
	if c.exited == nil {
		return nil
	}
	if c.Exited() {
		return c.unexpected()
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(fmt.Errorf("stop %s: %w", c.cfg.Name, err), c.Kill())
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	select {
	case <-c.exited:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s did not stop when told to", c.cfg.Name), c.Kill())
	}
	if c.err != nil && !c.terminated() {
		return fmt.Errorf("%s stopped with %w, its log is %s", c.cfg.Name, c.err, c.log.Name())
	}
	return nil
}

// terminated reports whether SIGTERM ended the process before it listened for
// it: it had just been started again, and had nothing to stop yet.
func (c *Child) terminated() bool {
	status, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// Close ends the process if it still runs, and closes the log.
func (c *Child) Close() error {
	if c.exited != nil && !c.Exited() {
		_ = c.Kill()
	}
	return c.log.Close()
}
