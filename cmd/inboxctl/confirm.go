package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// confirm asks on standard error and reads a line. Any other answer than the wanted one returns
// errNotConfirmed, and so does the end of the input. A script without --yes therefore does nothing.
func (a *app) confirm(ctx context.Context, question, wanted string) error {
	fmt.Fprint(a.errOut, question)
	answers := make(chan string, 1)
	failed := make(chan error, 1)
	// The goroutine may outlast this call, because a read from a terminal cannot be cancelled. It
	// ends with the process.
	go func() {
		answer, err := bufio.NewReader(a.in).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			failed <- fmt.Errorf("read the answer: %w", err)
			return
		}
		answers <- strings.TrimSuffix(strings.TrimSuffix(answer, "\n"), "\r")
	}()
	select {
	case answer := <-answers:
		if answer != wanted {
			return errNotConfirmed
		}
		return nil
	case err := <-failed:
		return err
	case <-ctx.Done():
		fmt.Fprintln(a.errOut)
		return fmt.Errorf("%w: %w", errNotConfirmed, ctx.Err())
	}
}
