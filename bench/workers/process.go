package workers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"time"
)

// Process is a handle on a worker process.
type Process struct {
	command   *exec.Cmd
	input     io.WriteCloser
	ready     chan struct{} // closed when the process waits for Begin
	ended     chan struct{} // closed when the process has ended
	completed atomic.Int64
	log       bytes.Buffer

	// Valid after ended is closed.
	handled int64
	cpu     time.Duration
	err     error
}

// Start runs this program as a worker and waits until it is ready. The worker is killed when ctx
// ends.
func Start(ctx context.Context, dsn string) (*Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{command: exec.CommandContext(ctx, program, Command, dsn), ready: make(chan struct{}),
		ended: make(chan struct{})}
	p.command.Stderr = &p.log
	if p.input, err = p.command.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := p.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	go p.read(output)
	select {
	case <-p.ready:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("a worker ended at its start: %w", p.err)
	}
}

// read parses the process's output until it ends.
func (p *Process) read(output io.Reader) {
	defer close(p.ended)
	lines := bufio.NewScanner(output)
	complete := false
	for lines.Scan() {
		line := lines.Text()
		if line == "ready" {
			close(p.ready)
			continue
		}
		if n, err := strconv.ParseInt(line, 10, 64); err == nil {
			p.completed.Store(n)
			continue
		}
		var us int64
		if _, err := fmt.Sscanf(line, "end %d %d", &p.handled, &us); err == nil {
			p.cpu, complete = time.Duration(us)*time.Microsecond, true
		}
	}
	p.err = errors.Join(lines.Err(), p.command.Wait())
	if p.err == nil && !complete {
		p.err = errors.New("it said nothing at its end")
	}
	if p.err != nil {
		p.err = fmt.Errorf("%w: %s", p.err, bytes.TrimSpace(p.log.Bytes()))
	}
}

// Begin makes the process start its inbox.
func (p *Process) Begin() error {
	_, err := fmt.Fprintln(p.input, "begin")
	return err
}

// Completed returns how many completed statuses the process has stored. It returns an error if the
// process has ended.
func (p *Process) Completed() (int64, error) {
	select {
	case <-p.ended:
		return 0, fmt.Errorf("a worker ended: %w", p.err)
	default:
		return p.completed.Load(), nil
	}
}

// End stops the process. It returns how often the handler was called and the CPU time used since
// Begin.
func (p *Process) End() (handled int64, cpu time.Duration, err error) {
	_ = p.input.Close()
	<-p.ended
	return p.handled, p.cpu, p.err
}
