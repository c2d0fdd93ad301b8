package invoke_test

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorm-inbox/inbox/internal/invoke"
)

func TestCrewRunsEverythingAndLeavesNothingBehind(t *testing.T) {
	for _, crew := range []*invoke.Crew{nil, invoke.NewCrew()} {
		before := goleak.IgnoreCurrent()
		var done sync.WaitGroup
		for i := range 200 {
			done.Add(1)
			crew.Go(func() {
				defer done.Done()
				if i%10 == 0 {
					runtime.Goexit()
				}
			})
		}
		done.Wait()
		if crew != nil {
			crew.Dismiss()
			crew.Dismiss()
			late := make(chan struct{})
			crew.Go(func() { close(late) })
			<-late
		}
		goleak.VerifyNone(t, before)
	}
}

func TestCrewIsNeverShortOfAGoroutine(t *testing.T) {
	crew := invoke.NewCrew()
	defer crew.Dismiss()
	release := make(chan struct{})
	var begun, done sync.WaitGroup
	for range 50 { // each waits for all: none may stand in line behind another
		begun.Add(1)
		done.Add(1)
		crew.Go(func() {
			defer done.Done()
			begun.Done()
			<-release
		})
	}
	begun.Wait()
	close(release)
	done.Wait()
	require.NotNil(t, crew)
}
