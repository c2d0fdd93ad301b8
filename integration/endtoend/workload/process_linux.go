package workload

import "syscall"

// attributes has the kernel kill a worker with us, frozen or not.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
