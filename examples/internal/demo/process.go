package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"go.uber.org/fx"
)

// workerVariable makes the program a worker and holds its configuration.
const workerVariable = "INBOX_EXAMPLE_WORKER"

// IsWorker reports whether this process was started by Process.Start.
func IsWorker() bool { return os.Getenv(workerVariable) != "" }

// Work is a worker's main function: it works until SIGTERM ends ctx, and exits. It also exits when
// its parent does.
func Work[C any](work func(ctx context.Context, config C) error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The parent holds the other end of standard input and never writes.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	var config C
	err := json.Unmarshal([]byte(os.Getenv(workerVariable)), &config)
	if err == nil {
		err = work(ctx, config)
	}
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Run does as app.Run, which would not notice a signal that comes before it has started.
func Run(ctx context.Context, app *fx.App) error {
	starting, cancel := context.WithTimeout(ctx, app.StartTimeout())
	defer cancel()
	if err := app.Start(starting); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-app.Wait(): // the parent notices that the service ends by itself
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.StopTimeout())
	defer cancel()
	return app.Stop(stopping)
}

// KillSelf ends this process as a crash would: nothing in it runs after that.
func KillSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal arrives
}

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
}

// Start starts the process, also again.
func (p *Process) Start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(os.Environ(), workerVariable+"="+p.config)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.ExtraFiles = p.Files
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	p.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		p.err = cmd.Wait()
		close(exited)
	}(p.cmd, p.exited)
	return nil
}

// running reports whether the process was started and has not exited.
func (p *Process) running() bool {
	if p.exited == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// endedBy reports whether a signal ended the process.
func (p *Process) endedBy(signal syscall.Signal) bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// Unexpected returns an error if the process has exited by itself.
func (p *Process) Unexpected() error {
	if p.running() {
		return nil
	}
	return fmt.Errorf("%s has ended by itself (%v), its log is %s", p.Name, p.err, p.log.Name())
}

// Kill ends the process as a crash would: nothing in it runs after that.
func (p *Process) Kill() error {
	if err := p.Unexpected(); err != nil {
		return err
	}
	err := p.cmd.Process.Kill()
	<-p.exited
	return err
}

// Stop ends the process as a deployment would, by SIGTERM. An exit status other than 0 is an error; a
// process that does not exit in time is killed. A process that was never started is left alone.
func (p *Process) Stop() error {
	if p.exited == nil {
		return nil
	}
	if err := p.Unexpected(); err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Join(fmt.Errorf("stop %s: %w", p.Name, err), p.Kill())
	}
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		return errors.Join(fmt.Errorf("%s did not stop after SIGTERM", p.Name), p.Kill())
	}
	// One that was just started again may not handle signals yet, and has nothing to stop.
	if p.err != nil && !p.endedBy(syscall.SIGTERM) {
		return fmt.Errorf("%s stopped with %w, its log is %s", p.Name, p.err, p.log.Name())
	}
	return nil
}

// Workers are processes that are alike but for their names. They have one owner.
type Workers []*Process

// Workers prepares the processes worker-1 to worker-n. See Processes.
func (e *Environment) Workers(n int, config func(name string) any) (Workers, error) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("worker-%d", i+1)
	}
	return e.Processes(names, config)
}

// Processes prepares a process of each name, which logs to a file of the environment. config returns the argument
// of Work in that process.
func (e *Environment) Processes(names []string, config func(name string) any) (Workers, error) {
	var workers Workers
	for _, name := range names {
		text, err := json.Marshal(config(name))
		if err != nil {
			return nil, err
		}
		log, err := os.Create(e.File(name + ".log"))
		if err != nil {
			return nil, err
		}
		p := &Process{Name: name, config: string(text), log: log}
		e.Cleanup(func(context.Context, bool) error {
			if p.running() {
				_ = p.Kill()
			}
			return log.Close()
		})
		workers = append(workers, p)
	}
	return workers, nil
}

// During starts all workers, stops them when work has returned, and returns how long work took. Stopping is
// not cut short when ctx ends.
func (w Workers) During(ctx context.Context, work func(ctx context.Context) error) (time.Duration, error) {
	began := time.Now()
	var err error
	for _, p := range w {
		err = errors.Join(err, p.Start())
	}
	if err == nil {
		err = work(ctx)
	}
	took := time.Since(began)
	problems := make([]error, len(w))
	var stopping sync.WaitGroup
	for i, p := range w {
		stopping.Go(func() { problems[i] = p.Stop() })
	}
	stopping.Wait()
	return took, errors.Join(append(problems, err)...)
}

// RestartKilled starts those again that have killed themselves, and calls restarted for each. Any
// other exit is an error.
func (w Workers) RestartKilled(restarted func(p *Process)) error {
	for _, p := range w {
		switch {
		case p.running():
			continue
		case !p.endedBy(syscall.SIGKILL):
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
