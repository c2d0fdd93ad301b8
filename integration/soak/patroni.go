package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gorm-inbox/inbox/integration/servers"
)

// patroni is a cluster of PostgreSQL servers of which Patroni chooses the leader. Its DSN is that of HAProxy.
type patroni struct {
	cluster *servers.Patroni
	proxy   *servers.HAProxy
	losing  sync.Mutex // held while a leader is lost
}

func startPatroni(string) (database, error) {
	cluster, err := servers.StartPatroni(3)
	if err != nil {
		return nil, err
	}
	proxy, err := cluster.StartHAProxy()
	if err != nil {
		return nil, errors.Join(err, cluster.Close())
	}
	return &patroni{cluster: cluster, proxy: proxy}, nil
}

func (p *patroni) DSN() string { return p.proxy.DSN() }

func (p *patroni) Close() error { return errors.Join(p.proxy.Close(), p.cluster.Close()) }

// patroniCells returns the disturbances that only a cluster has, and those of the proxy before it.
func (w *world) patroniCells() []cell {
	p := w.server.(*patroni)
	return append([]cell{
		{"leader_switched_over", w.loseLeader(p, "hands over", func(*servers.PatroniMember) error {
			return p.cluster.SwitchOver()
		}, nil), 0},
		{"leader_crashed", w.loseLeader(p, "loses PostgreSQL", (*servers.PatroniMember).KillPostgres, nil), 0},
		{"leader_killed", w.loseLeader(p, "is killed", (*servers.PatroniMember).Kill, (*servers.PatroniMember).Start), 0},
		{"leader_frozen", w.loseLeader(p, "is frozen", (*servers.PatroniMember).Freeze, (*servers.PatroniMember).Thaw), 0},
		{"leader_cut_off", w.loseLeader(p, "is cut off from etcd", (*servers.PatroniMember).Disconnect,
			(*servers.PatroniMember).Reconnect), 0},
	}, w.proxyCells()...)
}

// loseLeader has the leader lost. Some time after another one works, it brings the former one back as a replica, unless
// that happens by itself. It is felt if a message could not be accepted. The recovery begins with the loss.
func (w *world) loseLeader(
	p *patroni, what string, begin, end func(*servers.PatroniMember) error,
) func(time.Duration) outcome {
	return func(lasts time.Duration) outcome {
		p.losing.Lock()
		defer p.losing.Unlock()
		err := p.cluster.AwaitCandidate()
		var leader *servers.PatroniMember
		if err == nil {
			leader, err = p.cluster.Leader()
		}
		if err != nil {
			w.logf("%v", err)
			return outcome{}
		}
		w.logf("the leader, %s, %s", leader.Name(), what)
		err = w.judging.Redirect("postgres://127.0.0.1:1/") // the former leader may soon lack what the next one has
		w.judging.Cut()
		began := time.Now()
		err = errors.Join(err, begin(leader))
		next, missing := p.cluster.AwaitLeader(leader)
		if err = errors.Join(err, missing); missing == nil {
			w.logf("%s is the leader after %.1fs", next.Name(), time.Since(began).Seconds())
			err = errors.Join(err, w.judging.Redirect(next.DSN()))
		}
		felt, _ := w.recovered(began, failed)()
		took := time.Since(began)
		pause(context.Background(), lasts)
		if end != nil {
			err = errors.Join(err, end(leader))
		}
		if err = errors.Join(err, p.cluster.AwaitReplicas(), w.followLeader(p)); err != nil {
			w.logf("%v", err)
			return outcome{}
		}
		w.logf("%s follows again", leader.Name())
		return outcome{true, func() (bool, time.Duration) { return felt, took }}
	}
}

// followLeader has the judge read from the leader. The former one may lack what the leader has.
func (w *world) followLeader(p *patroni) error {
	leader, err := p.cluster.Leader()
	if err != nil {
		return err
	}
	return w.judging.Redirect(leader.DSN())
}

// keepJudging has the judge follow a leader that Patroni has replaced by itself, until ctx ends.
func (w *world) keepJudging(ctx context.Context) {
	p, found := w.server.(*patroni)
	for found && pause(ctx, time.Second) {
		p.losing.Lock()
		_ = w.followLeader(p) // without a leader there is nothing to follow
		p.losing.Unlock()
	}
}
