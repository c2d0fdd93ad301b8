package servers

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// ownerEnv makes this test binary a process that owns servers, for the test that kills their owner.
const ownerEnv = "INBOX_TEST_SERVERS_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		ownServers()
		return
	}
	goleak.VerifyTestMain(tests{m})
}

// tests closes connections of the default HTTP client after the tests. The library that downloads
// PostgreSQL leaves them open.
type tests struct{ *testing.M }

func (t tests) Run() int {
	code := t.M.Run()
	http.DefaultClient.CloseIdleConnections()
	return code
}

// ownServers starts one frozen PostgreSQL and one running one, prints their processes and
// directories, and waits until it is killed.
func ownServers() {
	for _, freeze := range []bool{true, false} {
		p, err := StartPostgres(PostgresOptions{})
		if err != nil {
			panic(err)
		}
		// A busy machine may accept connections before it has started the four processes that stay. The
		// sessions of the start's pings and the process that recovers may still end.
		var children []int
		for end := time.After(time.Minute); len(children) < 4; {
			select {
			case <-end:
				panic(fmt.Sprintf("%d processes that stay, expected four", len(children)))
			case <-time.After(10 * time.Millisecond):
			}
			all, err := childrenOf(p.process.pid())
			if err != nil {
				panic(err)
			}
			children = slices.DeleteFunc(all, func(pid int) bool { return !staysInPostgres(pid) })
		}
		if freeze {
			if err := p.Freeze(); err != nil {
				panic(err)
			}
		}
		fmt.Println("directory", p.directory.path)
		for _, pid := range append(children, p.process.pid()) {
			fmt.Println("process", pid)
		}
	}
	fmt.Println("ready")
	select {}
}

// staysInPostgres reports whether a process is one that a PostgreSQL server has until it ends.
func staysInPostgres(pid int) bool {
	title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && slices.ContainsFunc([]string{"checkpointer", "background writer", "walwriter", "autovacuum launcher"},
		func(name string) bool { return strings.Contains(string(title), name) })
}
