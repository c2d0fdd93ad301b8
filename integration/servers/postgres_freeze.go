package servers

import (
	"errors"
	"syscall"
	"time"
)

// freeze stops the server's main process first and waits until it is stopped. Otherwise it could
// start a further process between the listing and the signals.
func (p *Postgres) freeze() error {
	pid := p.process.pid()
	p.process.signal(syscall.SIGSTOP)
	if err := await("server process stops", 10*time.Second, func() bool { return stopped(pid) || gone(pid) }); err != nil {
		return err
	}
	children, err := childrenOf(pid)
	if err != nil {
		return err
	}
	p.frozen = append([]int{pid}, children...)
	if p.guard, err = startGuard(p.frozen); err != nil {
		return errors.Join(err, p.thaw())
	}
	return signalAll(children, syscall.SIGSTOP)
}

// thaw continues the server's main process last. Otherwise it would take a child that is still
// stopped for a hanging one.
func (p *Postgres) thaw() error {
	if p.frozen == nil {
		return nil
	}
	woken := errors.Join(signalAll(p.frozen[1:], syscall.SIGCONT), signalAll(p.frozen[:1], syscall.SIGCONT))
	dismissed := p.guard.dismiss()
	p.frozen, p.guard = nil, nil
	return errors.Join(woken, dismissed)
}

func (p *Postgres) kill() error {
	if p.process == nil {
		return nil
	}
	// Freeze first, for the reason given there: a child started between listing and killing would
	// survive and keep the shared memory that Start needs.
	if p.frozen == nil && p.process.running() {
		if err := p.freeze(); err != nil {
			return err
		}
	}
	killed := p.frozen
	signalled := signalAll(killed, syscall.SIGKILL)
	<-p.process.done
	ended := await("server's processes end", stopTimeout, func() bool {
		for _, pid := range killed {
			if !gone(pid) {
				return false
			}
		}
		return true
	})
	dismissed := p.guard.dismiss()
	p.process, p.frozen, p.guard = nil, nil, nil
	return errors.Join(signalled, ended, dismissed)
}
