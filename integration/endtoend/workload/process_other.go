//go:build unix && !linux

package workload

import "syscall"

// attributes sets no death signal, so a worker has to notice the end of this process itself.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
