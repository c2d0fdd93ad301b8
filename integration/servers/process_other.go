//go:build unix && !linux

package servers

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// childAttributes puts a child into a process group of its own. On this system a child gets no
// signal when its parent dies, so a killed test run leaves its servers running.
func childAttributes(account *account) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if account != nil {
		attributes.Credential = &syscall.Credential{Uid: account.uid, Gid: account.gid}
	}
	return attributes
}

// childrenOf returns the living children of a process.
func childrenOf(pid int) ([]int, error) {
	output, err := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil, nil // none
	}
	if err != nil {
		return nil, fmt.Errorf("pgrep: %w", err)
	}
	var children []int
	for _, field := range strings.Fields(string(output)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("pgrep: %w", err)
		}
		children = append(children, child)
	}
	return children, nil
}

// gone reports whether a process has ended, even if it was not reaped.
func gone(pid int) bool {
	state := stateOf(pid)
	return state == "" || strings.HasPrefix(state, "Z")
}

func stopped(pid int) bool { return strings.HasPrefix(stateOf(pid), "T") }

func stateOf(pid int) string {
	output, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(output))
}
