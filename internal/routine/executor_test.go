package routine_test

import (
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/internal/routine"
)

func TestExecutorRunsEverythingAndLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	var e routine.Executor
	var done sync.WaitGroup
	for range 200 {
		done.Add(1)
		e.Run(done.Done)
	}
	done.Wait()
	e.Close()
	e.Close()
	late := make(chan struct{})
	e.Run(func() { close(late) })
	<-late
	goleak.VerifyNone(t, before)
}

func TestExecutorAlwaysHasAGoroutine(t *testing.T) {
	var e routine.Executor
	defer e.Close()
	release := make(chan struct{})
	var begun, done sync.WaitGroup
	for range 50 { // each job waits for all others, so none may queue behind another
		begun.Add(1)
		done.Add(1)
		e.Run(func() {
			defer done.Done()
			begun.Done()
			<-release
		})
	}
	begun.Wait()
	close(release)
	done.Wait()
}
