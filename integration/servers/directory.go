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

// newDirectory creates an empty directory that belongs to the account. An empty parent is the system's for temporary
// files.
func newDirectory(parent, server string, account *syscall.Credential) (*directory, error) {
	removeAbandoned(os.TempDir())
	path, err := os.MkdirTemp(parent, directoryPrefix+server+"-")
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

func (d *directory) remove() error { return errors.Join(os.RemoveAll(d.path), d.lock.Close()) }

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

// unprivileged returns the account of servers that refuse to run as root. It is nil, which means
// the account of this process, if that is not root.
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

// reservedPorts has a UDP socket for each TCP port that this process has given to a server.
var reservedPorts sync.Map

// freePort reserves a TCP port for a server of this process, even while the server is down. Other
// processes that use this package skip it, because they cannot listen on the UDP port of the same
// number. It is below the range of ports for outgoing connections (32768 upwards on Linux), where
// any client on the machine could be given it while the server is down.
func freePort() (int, error) {
	const low, high, tries = 20000, 32000, 200
	for range tries {
		port := low + rand.IntN(high-low)
		reserved, err := net.ListenPacket("udp", address(port))
		if err != nil {
			continue
		}
		if listener, err := net.Listen("tcp", address(port)); err == nil {
			reservedPorts.Store(port, reserved) // open until this process ends
			return port, listener.Close()
		}
		_ = reserved.Close() // another program has the TCP port
	}
	return 0, fmt.Errorf("no free port between %d and %d on %s in %d tries", low, high, loopback, tries)
}

func address(port int) string { return fmt.Sprintf("%s:%d", loopback, port) }
