//go:build unix && !linux

package servers

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// ChildAttributes puts a child into a process group of its own. On this system a child gets no
// signal when its parent dies, so a killed test run leaves its servers running.
func ChildAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// processes returns the states of all processes by their IDs.
func processes() (map[int]state, error) {
	output, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "state=").Output()
	if err != nil {
		return nil, fmt.Errorf("ps: %w", err)
	}
	all := map[int]state{}
	for line := range strings.Lines(string(output)) {
		var pid int
		var s state
		if _, err := fmt.Sscanf(line, "%d %d %c", &pid, &s.parent, &s.letter); err != nil {
			return nil, fmt.Errorf("ps: line %q: %w", line, err)
		}
		all[pid] = s
	}
	return all, nil
}

// processesOf returns the processes that have this argument, which has no spaces.
func processesOf(argument string) (pids []int, err error) {
	output, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "args=").Output()
	if err != nil {
		return nil, fmt.Errorf("ps: %w", err)
	}
	for line := range strings.Lines(string(output)) {
		var pid int
		if _, err := fmt.Sscan(line, &pid); err != nil {
			return nil, fmt.Errorf("ps: line %q: %w", line, err)
		}
		if slices.Contains(strings.Fields(line), argument) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
