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

// KafkaOptions configures StartKafka. The zero value is right for most tests.
type KafkaOptions struct {
	// Heap is the broker's maximum heap in megabytes. The default is 384.
	Heap int
	// Settings are added to the broker's settings (server.properties), or replace them. Don't set
	// listeners, process.roles or log.dirs.
	Settings map[string]string
	// Secured adds listeners with TLS and SASL, and ACLs (kafka_secured.go). See Kafka.Listener and
	// Kafka.Authority.
	Secured bool
}

// Kafka is a broker with a cluster of its own in one process (KRaft, combined mode). Its Admin
// methods are usable while it runs.
type Kafka struct {
	*Admin
	launcher  launcher
	port      int
	control   int
	heap      int
	settings  map[string]string
	secured   *secured // nil if the broker is not secured
	directory *directory
	probe     func(context.Context) error // fails until the broker is ready
	clustered bool                        // one of several nodes

	mu      sync.Mutex
	process *process // nil when not running
	frozen  bool
	closed  bool
}

// launcher runs Kafka's programs, either from its jars or in a container.
type launcher interface {
	// format and serve return commands that read the properties file at settingsPath inside the
	// broker's directory.
	format(k *Kafka, clusterID string) *exec.Cmd
	serve(k *Kafka) (*exec.Cmd, error)
	// dataPath returns the log directory as the broker sees it.
	dataPath(k *Kafka) string
	// bind returns the address that listeners bind to where the broker runs.
	bind() string
	// signal sends SIGTERM, SIGKILL, SIGSTOP or SIGCONT to the broker itself.
	signal(k *Kafka, sig syscall.Signal) error
}

// StartKafka makes a new broker and waits until it serves requests and groups. If Kafka is missing,
// the error is one line that says where it was looked for and how to install it.
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

// startNew assigns new ports and an empty data directory to the broker.
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

// format creates an empty data directory for a node of this cluster.
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

// Brokers returns the bootstrap list. It stays the same across restarts.
func (k *Kafka) Brokers() []string { return []string{address(k.port)} }

// PID returns the process ID of the program that was started, or 0 while it does not run. That is
// the broker itself, or the client of its container.
func (k *Kafka) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process == nil || !k.process.running() {
		return 0
	}
	return k.process.cmd.Process.Pid
}

// Start starts the broker again on the same port and data, and waits until it serves requests. It
// does nothing if the broker runs.
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
	k.Admin.Close() // its metadata is from the previous run
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := process.waitUntil(ctx, k.probe); err != nil {
		err = fmt.Errorf("Kafka: start: %w; its log: %s", err, logTail(k.log()))
		return errors.Join(err, k.kill())
	}
	return nil
}

// Stop shuts the broker down gracefully (SIGTERM). A frozen broker is thawed first.
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

// Kill kills the broker with SIGKILL, like a crash. The next Start recovers from its log.
func (k *Kafka) Kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return wrap("Kafka: kill", k.kill())
}

// Freeze stops the broker with SIGSTOP. Connections stay open and get no response, as in a network
// partition.
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

// Thaw continues a frozen broker.
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
		k.process.signal(syscall.SIGKILL) // at least the program that this process started
	}
	<-k.process.done
	k.process, k.frozen = nil, false
	return err
}

// signal ignores that the broker may have ended already, because callers wait for its end next.
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

// ready returns an error until requests are answered and groups can be joined, which takes a moment
// longer.
func (k *Kafka) ready(ctx context.Context) error {
	if err := k.Admin.Ping(ctx); err != nil {
		return err
	}
	return k.Admin.findCoordinator(ctx)
}

func (k *Kafka) settingsPath() string { return k.directory.join("server.properties") }
func (k *Kafka) log() string          { return k.directory.join("server.log") }
