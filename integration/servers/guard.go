package servers

import (
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
)

// guard kills frozen processes should this process die. The kernel does so for
// our own children only, and a server's children, once stopped, cannot notice
// that their parent is gone: they would stay for ever.
type guard struct {
	shell *exec.Cmd
	input io.WriteCloser
}

// startGuard starts a shell that waits for a word from us. Without a word the
// end of its input means that we are dead, whatever the way.
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

// dismiss ends the guard without harm to what it guards. A nil guard is none.
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
