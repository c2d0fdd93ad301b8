package servers

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ChildAttributes puts a child into a process group of its own. So Ctrl-C reaches only this
// process, and servers end after the tests that use them. It also makes the kernel kill the child
// when the thread that started it ends, which must live as long as this process.
func ChildAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// processes returns the states of all processes by their IDs.
func processes() (map[int]state, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := make(map[int]state, len(files))
	for _, file := range files {
		stat, err := os.ReadFile(file)
		// The second field is the name in parentheses, which may contain spaces and parentheses.
		name := bytes.LastIndexByte(stat, ')')
		if err != nil || name < 0 {
			continue // the process has ended
		}
		var pid int
		var s state
		if _, err := fmt.Sscanf(string(stat[:name]), "%d", &pid); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if _, err := fmt.Sscanf(string(stat[name+1:]), " %c %d", &s.letter, &s.parent); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all[pid] = s
	}
	return all, nil
}

// processesOf returns the processes that have this argument.
func processesOf(argument string) (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || !slices.Contains(strings.Split(string(line), "\x00"), argument) {
			continue // an error: the process has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
