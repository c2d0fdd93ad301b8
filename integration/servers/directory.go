package servers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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
func newDirectory(server string, account *syscall.Credential) (*directory, error) {
	removeAbandoned(os.TempDir())
	path, err := os.MkdirTemp("", directoryPrefix+server+"-")
	if err != nil {
		return nil, err
	}
	// Lock the file before it gets the name that removeAbandoned searches for. Otherwise a
	// concurrent start could take the lock first and remove the directory.
	d := &directory{path: path}
	d.lock, err = os.CreateTemp(path, "lock-")
	if err == nil {
		err = syscall.Flock(int(d.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(d.lock.Name(), d.join(ownerFile))
	}
	if err == nil && account != nil {
		err = os.Chown(path, int(account.Uid), int(account.Gid))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("data directory %s: %w", path, err), d.remove())
	}
	return d, nil
}

func (d *directory) join(name string) string { return filepath.Join(d.path, name) }

// remove removes the directory once. Its owner does not use it afterwards.
func (d *directory) remove() error {
	removed := os.RemoveAll(d.path)
	if d.lock == nil {
		return removed
	}
	return errors.Join(removed, d.lock.Close())
}

// removeAbandoned removes directories whose owner is dead. It leaves directories without a lock
// file alone, because they are being created or belong to something else.
func removeAbandoned(parent string) {
	locks, _ := filepath.Glob(filepath.Join(parent, directoryPrefix+"*", ownerFile))
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

// unprivileged returns the account of servers that refuse to run as root: "postgres", or else
// "nobody". It returns nil, which is the account of this process, if that is not root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	found, err := user.Lookup("postgres")
	if err != nil {
		found, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("no account postgres or nobody to run as: %w", err)
	}
	uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(uidErr, gidErr)
}

const loopback = "127.0.0.1"

// givenPorts are the ports that this process has used or found taken.
var givenPorts sync.Map

// freePort finds a port on which no process listens. It searches below the range of ports for
// outgoing connections (32768 upwards on Linux). Otherwise, while a server is down, any client on
// the machine could be given the port that the server must come back to. It returns no port twice,
// because a previous caller may not listen yet or be down.
func freePort() (int, error) {
	const low, high, tries = 20000, 32000, 200
	for range tries {
		port := low + rand.IntN(high-low)
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue
		}
		listener, err := net.Listen("tcp", address(port))
		if err != nil {
			continue
		}
		return port, listener.Close()
	}
	return 0, fmt.Errorf("no free port between %d and %d on %s in %d tries", low, high, loopback, tries)
}

func address(port int) string { return fmt.Sprintf("%s:%d", loopback, port) }

// portTaken reports whether a server's log says that another process took its port first.
func portTaken(err error) bool {
	return err != nil && strings.Contains(strings.ToLower(err.Error()), "address already in use")
}
