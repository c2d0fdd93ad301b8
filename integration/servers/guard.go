package servers

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// guard kills frozen processes if this process dies. The kernel does that only for direct children.
// A server's own children, once stopped, cannot notice that their parent is gone, and would remain.
type guard struct {
	shell *exec.Cmd
	input io.WriteCloser
}

// startGuard starts a shell that waits for a line from this process. If its input ends without one,
// this process is dead.
func startGuard(pids []int) (*guard, error) {
	arguments := []string{"-c", `read -r word && exit 0; kill -KILL "$@" 2>/dev/null`, "guard"}
	for _, pid := range pids {
		arguments = append(arguments, strconv.Itoa(pid))
	}
	shell := exec.Command("/bin/sh", arguments...)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := shell.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("guard of frozen processes: %w", err)
	}
	if err := shell.Start(); err != nil {
		return nil, fmt.Errorf("guard of frozen processes: %w", err)
	}
	return &guard{shell: shell, input: input}, nil
}

// dismiss ends the guard without killing anything. A nil guard is valid.
func (g *guard) dismiss() error {
	if g == nil {
		return nil
	}
	if _, err := io.WriteString(g.input, "dismissed\n"); err != nil {
		return fmt.Errorf("dismiss guard of frozen processes: %w", err)
	}
	if err := g.shell.Wait(); err != nil {
		return fmt.Errorf("guard of frozen processes: %w", err)
	}
	return nil
}
