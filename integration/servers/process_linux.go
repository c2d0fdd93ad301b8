package servers

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// childAttributes puts a child into a process group of its own. So Ctrl-C reaches only this
// process, and servers end after the tests that use them. It also makes the kernel kill the child
// when this process dies.
func childAttributes(account *account) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if account != nil {
		attributes.Credential = &syscall.Credential{Uid: account.uid, Gid: account.gid}
	}
	return attributes
}

// childrenOf returns the living children of a process.
func childrenOf(pid int) ([]int, error) {
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var children []int
	for _, entry := range entries {
		candidate, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		state, parent := stateOf(candidate)
		if parent == pid && state != 'Z' {
			children = append(children, candidate)
		}
	}
	return children, nil
}

// gone reports whether a process has ended, even if it was not reaped.
func gone(pid int) bool {
	state, _ := stateOf(pid)
	return state == 0 || state == 'Z' || state == 'X'
}

func stopped(pid int) bool {
	state, _ := stateOf(pid)
	return state == 'T'
}

// stateOf returns a process's state letter and its parent, or zeros if there is no such process.
func stateOf(pid int) (state byte, parent int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	// The name is in parentheses and may itself contain spaces and parentheses.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 {
		return 0, 0
	}
	parent, err = strconv.Atoi(string(fields[1]))
	if err != nil {
		return 0, 0
	}
	return fields[0][0], parent
}
