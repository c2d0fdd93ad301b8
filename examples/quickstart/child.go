package main

import (
	"fmt"
	"os"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
)

// RunService is the child's main function: the service until a signal ends it.
func RunService() {
	cfg, err := ConfigFromEnv()
	if err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
	go scratch.EndWithParent()
	Service(cfg).Run()
}

// NewChild prepares the service in a process of its own; its log goes to a file.
func NewChild(cfg Config, logFile string) (*scratch.Process, error) {
	process, err := scratch.NewProcess("the service", logFile)
	if err != nil {
		return nil, err
	}
	process.Env = cfg.Env()
	return process, nil
}
