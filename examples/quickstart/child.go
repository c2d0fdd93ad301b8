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

// roleVariable tells the program, in a process of its own, to be the service.
const roleVariable = "QUICKSTART_ROLE"

// RunService is the child's main function: the service until a signal ends it.
func RunService() {
	cfg, err := ConfigFromEnv()
	if err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
	go endWithParent()
	Service(cfg).Run()
}

// endWithParent leaves no orphan behind: the parent holds the other end of
// standard input and never writes.
func endWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// Child is the service in a process of its own.
type Child struct {
	cfg    Config
	log    *os.File
	starts int
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{} // closed when it has, err is set then
	err    error
}

// NewChild prepares the service; its log goes to a file.
func NewChild(cfg Config, logFile string) (*Child, error) {
	log, err := os.Create(logFile)
	if err != nil {
		return nil, err
	}
	return &Child{cfg: cfg, log: log}, nil
}

// Start starts this very program again, as the service. The client ID it gets
// is its own.
func (c *Child) Start() error {
	c.starts++
	c.cfg.ClientID = fmt.Sprintf("service-%d", c.starts)
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start service: %w", err)
	}
	c.cmd = exec.Command(program)
	c.cmd.Env = append(append(os.Environ(), roleVariable+"=service"), c.cfg.Env()...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return fmt.Errorf("start service: %w", err)
	}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("start service: %w", err)
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
	return fmt.Errorf("the service has ended by itself (%v), its log is %s", c.err, c.log.Name())
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
// an error; a service that does not end in time is killed. Without a Start it
// does nothing.
func (c *Child) Stop(ctx context.Context) error {
	if c.exited == nil {
		return nil
	}
	if c.Exited() {
		return c.unexpected()
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(fmt.Errorf("stop service: %w", err), c.Kill())
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	select {
	case <-c.exited:
	case <-ctx.Done():
		return errors.Join(errors.New("the service did not stop when told to"), c.Kill())
	}
	if c.err != nil {
		return fmt.Errorf("the service stopped with %w, its log is %s", c.err, c.log.Name())
	}
	return nil
}

// Close ends the process if it still runs, and closes the log.
func (c *Child) Close() error {
	if c.exited != nil && !c.Exited() {
		_ = c.Kill()
	}
	return c.log.Close()
}
