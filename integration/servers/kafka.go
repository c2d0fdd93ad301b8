package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// KafkaVersion is the version of Apache Kafka that StartKafka starts.
const KafkaVersion = "4.1.0"

// KafkaOptions says how StartKafka starts its broker. The zero value is right
// for most tests.
type KafkaOptions struct {
	// Heap is the broker's maximum heap in megabytes. Default 384.
	Heap int
	// Settings are added to, or replace, broker settings (server.properties).
	// Don't set listeners, process.roles or log.dirs.
	Settings map[string]string
	// Secured adds listeners with TLS and SASL, and rights (kafka_secured.go):
	// see Kafka.Listener and Kafka.Authority.
	Secured bool
}

// Kafka is a broker of its own, a whole cluster in one process (KRaft, combined
// mode). Its Admin methods are usable while it runs.
type Kafka struct {
	*Admin
	launcher  launcher
	port      int
	control   int
	heap      int
	settings  map[string]string
	secured   *secured // nil when it is not
	directory *directory
	probe     func(context.Context) error // whether it does what it is there for
	clustered bool                        // one of several nodes

	mu      sync.Mutex
	process *process // nil when not running
	frozen  bool
	closed  bool
}

// launcher runs Kafka's programs: directly from its jars, or in a container.
type launcher interface {
	// format and serve return commands that read the properties file at
	// settingsPath inside the broker's directory.
	format(k *Kafka, clusterID string) *exec.Cmd
	serve(k *Kafka) (*exec.Cmd, error)
	// dataPath is its log directory, as the broker sees it.
	dataPath(k *Kafka) string
	// bind is the address that listeners bind to where the broker runs.
	bind() string
	// signal reaches the broker itself. SIGTERM, SIGKILL, SIGSTOP and SIGCONT.
	signal(k *Kafka, sig syscall.Signal) error
}

// StartKafka makes a new broker and waits until it takes requests and groups.
// The error, one line, says what was looked for and how to install it.
func StartKafka(options KafkaOptions) (*Kafka, error) {
	launcher, err := findKafka()
	if err != nil {
		return nil, err
	}
	k, err := newKafka(launcher, options)
	if err != nil {
		return nil, err
	}
	if options.Secured {
		if k.secured, err = newSecured(); err != nil {
			return nil, errors.Join(fmt.Errorf("Kafka: %w", err), k.Close())
		}
	}
	for range 3 {
		if err = k.startNew(); !portTaken(err) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func newKafka(launcher launcher, options KafkaOptions) (*Kafka, error) {
	directory, err := newDirectory("kafka", nil)
	if err != nil {
		return nil, fmt.Errorf("Kafka: %w", err)
	}
	k := &Kafka{launcher: launcher, heap: options.Heap, settings: options.Settings, directory: directory}
	k.probe = k.ready
	if k.heap == 0 {
		k.heap = 384
	}
	return k, nil
}

// startNew gives the broker fresh ports and an empty data directory.
func (k *Kafka) startNew() error {
	var err error
	if k.port, err = freePort(); err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	if k.control, err = freePort(); err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	if err = k.secured.takePorts(); err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	if k.Admin != nil {
		k.Admin.Close()
	}
	k.Admin = NewAdmin(address(k.port))
	if err := k.format(newClusterID()); err != nil {
		return err
	}
	return k.Start()
}

// format makes an empty data directory for a node of this cluster.
func (k *Kafka) format(clusterID string) error {
	if err := os.RemoveAll(k.directory.join("data")); err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	if err := os.WriteFile(k.settingsPath(), k.properties(), 0o644); err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := run(ctx, k.launcher.format(k, clusterID), nil, k.log()); err != nil {
		return fmt.Errorf("Kafka: format: %w", err)
	}
	return nil
}

// Brokers is the bootstrap list. It stays the same over restarts.
func (k *Kafka) Brokers() []string { return []string{address(k.port)} }

// PID is the process ID of the program that was started, 0 while it does not
// run: the broker itself, or the client of the container it runs in.
func (k *Kafka) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process == nil || !k.process.running() {
		return 0
	}
	return k.process.cmd.Process.Pid
}

// Start starts the broker again on the same port and data and waits until it
// takes requests; does nothing when it runs.
func (k *Kafka) Start() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return errors.New("Kafka: start: closed")
	}
	if k.process != nil && k.process.running() {
		return nil
	}
	command, err := k.launcher.serve(k)
	if err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	process, err := startProcess(command, nil, k.log())
	if err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	k.process = process
	k.Admin.Close() // what it knows is about the run before
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := process.waitUntil(ctx, k.probe); err != nil {
		err = fmt.Errorf("Kafka: start: %w; its log: %s", err, logTail(k.log()))
		return errors.Join(err, k.kill())
	}
	return nil
}

// Stop shuts the broker down in order (SIGTERM). A frozen one is thawed first.
func (k *Kafka) Stop() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process == nil {
		return nil
	}
	thawed := k.thaw()
	var ended error
	if err := k.signal(syscall.SIGTERM); err != nil {
		ended = errors.Join(err, k.kill())
	} else if err := k.process.waitEnd(); err != nil {
		ended = errors.Join(err, k.kill())
	}
	k.process = nil
	return wrap("Kafka: stop", errors.Join(thawed, ended))
}

// Kill ends the broker with SIGKILL, as a crash does; the next Start recovers
// from its log.
func (k *Kafka) Kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return wrap("Kafka: kill", k.kill())
}

// Freeze stops the broker in its tracks (SIGSTOP): connections stay open and
// nothing answers, as behind a partition.
func (k *Kafka) Freeze() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.frozen {
		return nil
	}
	if k.process == nil || !k.process.running() {
		return errors.New("Kafka: freeze: not running")
	}
	if err := k.signal(syscall.SIGSTOP); err != nil {
		return wrap("Kafka: freeze", err)
	}
	k.frozen = true
	return nil
}

// Thaw lets a frozen broker go on where it was.
func (k *Kafka) Thaw() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return wrap("Kafka: thaw", k.thaw())
}

// Close kills the broker and removes its data.
func (k *Kafka) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	k.closed = true
	killed := k.kill()
	if k.Admin != nil {
		k.Admin.Close()
	}
	return wrap("Kafka: close", errors.Join(killed, k.directory.remove()))
}

func (k *Kafka) thaw() error {
	if !k.frozen {
		return nil
	}
	k.frozen = false
	return k.signal(syscall.SIGCONT)
}

func (k *Kafka) kill() error {
	if k.process == nil {
		return nil
	}
	err := k.signal(syscall.SIGKILL)
	if err != nil {
		k.process.signal(syscall.SIGKILL) // at least what we started ourselves
	}
	<-k.process.done
	k.process, k.frozen = nil, false
	return err
}

// signal ignores that the broker has ended already: whoever signals waits next.
func (k *Kafka) signal(sig syscall.Signal) error {
	if !k.process.running() {
		return nil
	}
	err := k.launcher.signal(k, sig)
	if err != nil && !k.process.running() {
		return nil
	}
	return err
}

// ready tells that requests are answered and that groups can be joined, which
// comes a moment later.
func (k *Kafka) ready(ctx context.Context) error {
	if err := k.Admin.Ping(ctx); err != nil {
		return err
	}
	return k.Admin.findCoordinator(ctx)
}

func (k *Kafka) settingsPath() string { return k.directory.join("server.properties") }
func (k *Kafka) log() string          { return k.directory.join("server.log") }
