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

// Child is the service in a process of its own.
type Child struct {
	*scratch.Process
	cfg    Config
	starts int
}

// NewChild prepares the service; its log goes to a file.
func NewChild(cfg Config, logFile string) (*Child, error) {
	process, err := scratch.NewProcess("the service", logFile)
	return &Child{Process: process, cfg: cfg}, err
}

// Start starts the service. The client ID it gets is its own.
func (c *Child) Start() error {
	c.starts++
	c.cfg.ClientID = fmt.Sprintf("service-%d", c.starts)
	c.Env = c.cfg.Env()
	return c.Process.Start()
}
