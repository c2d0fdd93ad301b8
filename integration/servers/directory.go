package servers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	directoryPrefix = "inbox-test-"
	ownerFile       = "owner.lock"
)

// directory has one server's data and log. A lock on a file inside shows that its owner lives. The
// kernel releases the lock when the owner dies, so the next start can remove what a killed test run
// has left.
type directory struct {
	path string
	lock *os.File
}

// newDirectory creates an empty directory that belongs to the account.
func newDirectory(server string, account *account) (*directory, error) {
	removeAbandoned(os.TempDir())
	path, err := os.MkdirTemp(os.TempDir(), directoryPrefix+server+"-")
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	d := &directory{path: path}
	// Lock the file before it gets the name that removeAbandoned searches for. Otherwise a
	// concurrent start could take the lock first and remove the directory.
	d.lock, err = os.CreateTemp(path, "lock-")
	if err == nil {
		err = syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(d.lock.Name(), d.join(ownerFile))
	}
	if err == nil {
		err = account.own(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data directory %s: %w", path, err), d.remove())
	}
	return d, nil
}

func (d *directory) join(name string) string { return filepath.Join(d.path, name) }

func (d *directory) remove() error {
	var closed error
	if d.lock != nil {
		closed = d.lock.Close()
		d.lock = nil
	}
	return errors.Join(closed, os.RemoveAll(d.path))
}

// removeAbandoned removes directories whose owner is dead. It leaves directories without a lock
// file alone, because they are being created or belong to something else.
func removeAbandoned(parent string) {
	locks, err := filepath.Glob(filepath.Join(parent, directoryPrefix+"*", ownerFile))
	if err != nil {
		return
	}
	for _, name := range locks {
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue // owned by another account
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(name)) // best effort: the next start tries again
		}
		_ = lock.Close()
	}
}
