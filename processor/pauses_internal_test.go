package processor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
)

// lateResponse is a database whose first response takes long.
type lateResponse struct {
	store.Store
	asked, respond chan struct{}
	paused         chan []string
}

func (l *lateResponse) Paused(context.Context) ([]string, error) {
	paused := <-l.paused
	if paused == nil {
		close(l.asked)
		<-l.respond
	}
	return paused, nil
}

// Contract 5.13: a heartbeat that has read the handlers before a pause does not undo it.
func TestEarlierReadDoesNotUndoAPause(t *testing.T) {
	l := &lateResponse{asked: make(chan struct{}), respond: make(chan struct{}), paused: make(chan []string, 2)}
	s := &shared{store: l, pausing: routine.NewLock(), wakeup: newWakeup()}
	s.paused.Store(&map[string]bool{})
	l.paused <- nil
	l.paused <- []string{"h"}
	reads := make(chan error, 2)
	go func() { reads <- s.takePaused(t.Context()) }()
	<-l.asked
	go func() { reads <- s.takePaused(t.Context()) }()
	close(l.respond)
	require.NoError(t, <-reads)
	require.NoError(t, <-reads)
	require.Equal(t, map[string]bool{"h": true}, *s.paused.Load())
}
