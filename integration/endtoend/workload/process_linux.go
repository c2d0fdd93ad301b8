package workload

import "syscall"

// attributes makes the kernel kill a worker, even a frozen one, when this process dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
