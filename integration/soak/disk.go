package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// disk is a file system of its own in memory, which can be made full. Only root can mount one.
type disk struct{ path string }

// diskSize is more than a server's data ever has. What is not used takes no memory.
const diskSize = "12g"

// mountsEnv is set in a process whose mounts end with it.
const mountsEnv = "INBOX_SOAK_MOUNTS"

// useOwnMounts runs this program again where its mounts end with it and its children, however they end. It does nothing
// where that is not possible.
func useOwnMounts() {
	unshare, missing := exec.LookPath("unshare")
	program, unknown := os.Executable()
	if os.Geteuid() != 0 || os.Getenv(mountsEnv) != "" || missing != nil || unknown != nil {
		return
	}
	_ = syscall.Exec(unshare, append([]string{"unshare", "--mount", program}, os.Args[1:]...),
		append(os.Environ(), mountsEnv+"=1")) // returns only if it fails, and then there is no disk
}

// mountDisk returns a new file system, or an error that says why there is none.
func mountDisk() (*disk, error) {
	if os.Geteuid() != 0 || os.Getenv(mountsEnv) == "" {
		return nil, errors.New("only root can mount a small file system, and only in a mount namespace of its own")
	}
	path, err := os.MkdirTemp("", "inbox-soak-disk-")
	if err != nil {
		return nil, err
	}
	d := &disk{path}
	if err := mount("-t", "tmpfs", "-o", "mode=0777,size="+diskSize, "inbox-soak", path); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return d, nil
}

func mount(arguments ...string) error {
	if output, err := exec.Command("mount", arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("mount %v: %w: %s", arguments, err, output)
	}
	return nil
}

// fill makes the file system as small as what is on it. The kernel refuses a size that has been exceeded meanwhile.
func (d *disk) fill() (err error) {
	for range 20 {
		var found syscall.Statfs_t
		if err = syscall.Statfs(d.path, &found); err != nil {
			return fmt.Errorf("size of %s: %w", d.path, err)
		}
		used := (found.Blocks - found.Bfree) * uint64(found.Bsize)
		if err = mount("-o", fmt.Sprintf("remount,size=%d", used), d.path); err == nil {
			return nil
		}
	}
	return err
}

// free makes the file system as large as before.
func (d *disk) free() error { return mount("-o", "remount,size="+diskSize, d.path) }

// close unmounts the file system, which is gone with all that is on it.
func (d *disk) close() error {
	if output, err := exec.Command("umount", d.path).CombinedOutput(); err != nil {
		return fmt.Errorf("umount %s: %w: %s", d.path, err, output)
	}
	return os.Remove(d.path)
}
