package kafkatest

import (
	"context"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// sessions removes group members that stay silent for a session after partitions were assigned to them, as a broker
// does. The fake does not if the member's connection broke while its JoinGroup waited: the member keeps its partitions.
type sessions struct {
	kafka *Kafka
	ctx   context.Context
	end   context.CancelFunc

	mu      sync.Mutex
	longest map[string]time.Duration // each group's longest session timeout of its members
	silent  map[groupMember]*silence
	leaving sync.WaitGroup
}

type groupMember struct{ group, id string }

// silence is a running session timeout of a member. The member is removed when the timer fires.
type silence struct{ timer *time.Timer }

// watchSessions watches k's groups until it is closed.
func watchSessions(k *Kafka) *sessions {
	s := &sessions{kafka: k, longest: map[string]time.Duration{}, silent: map[groupMember]*silence{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	for _, api := range []kmsg.Key{kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat} {
		k.cluster.ControlKey(int16(api), func(req kmsg.Request) (kmsg.Response, error, bool) {
			k.cluster.KeepControl()
			s.saw(req)
			return nil, nil, false
		})
	}
	return s
}

func (s *sessions) saw(req kmsg.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch req := req.(type) {
	case *kmsg.JoinGroupRequest:
		s.longest[req.Group] = max(s.longest[req.Group], time.Duration(req.SessionTimeoutMillis)*time.Millisecond)
		s.markAlive(groupMember{req.Group, req.MemberID})
	case *kmsg.HeartbeatRequest:
		s.markAlive(groupMember{req.Group, req.MemberID})
	case *kmsg.SyncGroupRequest:
		s.markAlive(groupMember{req.Group, req.MemberID})
		for _, a := range req.GroupAssignment { // present in the leader's request only
			s.await(groupMember{req.Group, a.MemberID})
		}
	}
}

// await gives a member one session timeout to send a request. The caller holds mu.
func (s *sessions) await(m groupMember) {
	s.markAlive(m)
	if s.ctx.Err() == nil {
		since := &silence{}
		since.timer = time.AfterFunc(s.longest[m.group], func() { s.expire(m, since) })
		s.silent[m] = since
	}
}

// markAlive records that a member is alive. The caller holds mu.
func (s *sessions) markAlive(m groupMember) {
	if since := s.silent[m]; since != nil {
		since.timer.Stop()
		delete(s.silent, m)
	}
}

// expire makes the member leave the group, unless it was heard in the meantime.
func (s *sessions) expire(m groupMember, since *silence) {
	s.mu.Lock()
	if s.silent[m] != since || s.ctx.Err() != nil {
		s.mu.Unlock()
		return
	}
	delete(s.silent, m)
	s.leaving.Add(1)
	s.mu.Unlock()
	defer s.leaving.Done()
	client, err := kgo.NewClient(s.kafka.ClientOptions()...)
	if err != nil {
		return
	}
	defer client.Close()
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group = m.group
	member := kmsg.NewLeaveGroupRequestMember()
	member.MemberID = m.id
	leave.Members = append(leave.Members, member)
	_, _ = leave.RequestWith(s.ctx, client) // the member may be gone already, which is fine
}

// close stops all timers and waits for members that are leaving.
func (s *sessions) close() {
	s.mu.Lock()
	s.end()
	for m := range s.silent {
		s.markAlive(m)
	}
	s.mu.Unlock()
	s.leaving.Wait()
}
