package processor

import (
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestExecutorRunsEverythingAndLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	c := newExecutor()
	var done sync.WaitGroup
	for range 200 {
		done.Add(1)
		c.run(done.Done)
	}
	done.Wait()
	c.close()
	c.close()
	late := make(chan struct{})
	c.run(func() { close(late) })
	<-late
	goleak.VerifyNone(t, before)
}

func TestExecutorIsNeverShortOfAGoroutine(t *testing.T) {
	c := newExecutor()
	defer c.close()
	release := make(chan struct{})
	var begun, done sync.WaitGroup
	for range 50 { // each job waits for all others, so none may queue behind another
		begun.Add(1)
		done.Add(1)
		c.run(func() {
			defer done.Done()
			begun.Done()
			<-release
		})
	}
	begun.Wait()
	close(release)
	done.Wait()
}
