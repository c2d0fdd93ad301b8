// Package racetest lets tests begin the same work several times at one moment.
package racetest

import "sync"

// Together runs work for 0 to n-1, each in a goroutine of its own that waits until
// all are there, and returns their errors.
func Together(n int, work func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range n {
		group.Add(1)
		go func() {
			defer group.Done()
			<-start
			errs[i] = work(i)
		}()
	}
	close(start)
	group.Wait()
	return errs
}
