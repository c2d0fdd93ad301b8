//go:build unix && !linux

package workload

import "syscall"

// attributes leaves it to the worker to notice that we are gone.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
