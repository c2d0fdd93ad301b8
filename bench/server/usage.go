package server

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Usage counts resources used since an arbitrary start. Only differences are meaningful.
type Usage struct {
	Client time.Duration // CPU of this process
	Server time.Duration // CPU of all the server's processes
	WAL    int64         // bytes
}

// Usage reads the current usage. On systems without /proc Server stays zero.
func (s *Server) Usage(ctx context.Context) (u Usage, err error) {
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return u, err
	}
	u.Client = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	err = s.do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&u.WAL)
	})
	if err != nil {
		return u, fmt.Errorf("read the end of the log: %w", err)
	}
	if s.postgres == nil {
		return u, nil
	}
	u.Server, err = CPU(s.postgres.PID())
	return u, err
}

// ticks is USER_HZ, which is 100 on every Linux.
const ticks = 100

// CPU returns the CPU time of a process, of its living children and of those it has reaped. It is
// zero on systems without /proc.
func CPU(pid int) (time.Duration, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, nil // not Linux
	}
	var total int64
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fields, ok := stat(id)
		if !ok || id != pid && fields[1] != int64(pid) {
			continue
		}
		total += fields[11] + fields[12]
		if id == pid {
			total += fields[13] + fields[14]
		}
	}
	return time.Duration(total) * time.Second / ticks, nil
}

// stat reads the fields of /proc/PID/stat from the state on. [1] is the parent's PID, [11] to [14]
// are utime, stime, cutime and cstime.
func stat(pid int) (fields [15]int64, ok bool) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return fields, false
	}
	text := string(content)
	words := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	for i := range fields {
		if i >= len(words) {
			return fields, false
		}
		fields[i], _ = strconv.ParseInt(words[i], 10, 64)
	}
	return fields, true
}
