package servers

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// ownerEnv makes this test binary a process that owns servers, for the tests that kill their owner.
const ownerEnv = "INBOX_TEST_SERVERS_OWNER"

func TestMain(m *testing.M) {
	switch os.Getenv(ownerEnv) {
	case "PostgreSQL":
		ownServers()
		return
	case "Patroni":
		ownPatroni()
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

// owned keeps the servers of ownServers reachable. The garbage collector closes the lock files of
// others, and then the next start takes their owner for dead and removes their directories.
var owned []*Postgres

// ownServers starts one frozen PostgreSQL and one running one, prints their processes and
// directories, and waits until it is killed.
func ownServers() {
	for _, freeze := range []bool{true, false} {
		p, err := StartPostgres(PostgresOptions{})
		if err != nil {
			panic(err)
		}
		owned = append(owned, p)
		// A busy machine may accept connections before it has started the checkpointer, the two writers
		// and the autovacuum launcher.
		var children []int
		for end := time.After(time.Minute); len(children) < 4; {
			select {
			case <-end:
				panic(fmt.Sprintf("%d processes, expected four", len(children)))
			case <-time.After(10 * time.Millisecond):
			}
			if children, err = childrenOf(p.process.pid()); err != nil {
				panic(err)
			}
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

// ownedCluster is like owned.
var ownedCluster *Patroni

// ownPatroni starts a cluster of one member, and is then like ownServers.
func ownPatroni() {
	var err error
	if ownedCluster, err = StartPatroni(1); err != nil {
		panic(err)
	}
	m := ownedCluster.members[0]
	pids, err := processesOf(m.postgres.data())
	if err != nil {
		panic(err)
	}
	for _, pid := range pids {
		children, err := childrenOf(pid)
		if err != nil {
			panic(err)
		}
		pids = append(pids, children...)
	}
	for _, s := range []*server{m.patroni, m.gateway, ownedCluster.etcd} {
		fmt.Println("directory", s.directory.path)
		fmt.Println("process", s.PID())
	}
	fmt.Println("directory", m.postgres.directory.path)
	for _, pid := range pids {
		fmt.Println("process", pid)
	}
	fmt.Println("ready")
	select {}
}
