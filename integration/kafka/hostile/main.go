// Command hostile consumes a topic with default settings into a new database. It is run by a test
// that limits its memory. When the consumer's health contains a given text, it prints the health.
// When a given record has been handled, it prints how many messages and rejected records are
// stored, its peak memory use, its CPU time and how much it logged, and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	_ "modernc.org/sqlite"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

func main() {
	broker, topic, dsn := flag.String("broker", "", "host:port"), flag.String("topic", "", "what to consume"),
		flag.String("db", "", "DSN of an empty database")
	last := flag.String("last", "", "content of the record to wait for; empty does not wait")
	says := flag.String("says", "", "text to wait for in the consumer's health; empty does not wait")
	skip := flag.Bool("skip", false, "skip the first record once health says the text, as an operator would")
	mode := flag.String("mode", "inbox", "delivery mode: inbox, inline or direct")
	flag.Parse()
	if err := run(*broker, *topic, *dsn, *last, *says, *mode, *skip); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(broker, topic, dsn, last, says, mode string, skip bool) error {
	dialector := gorm.Dialector(sqlite.Dialector{DriverName: "sqlite", DSN: dsn})
	if strings.HasPrefix(dsn, "postgres") {
		dialector = postgres.Open(dsn)
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}
	handled := make(chan struct{}, 1)
	logged := &counter{}
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(logged),
		zap.InfoLevel))
	options := []inbox.ChannelOption{
		inbox.Kafka(kafkaconsumer.Config{Brokers: []string{broker}, Topics: []string{topic}, GroupID: "g",
			Decoder: envelope.DecoderConfig{TypeHeader: "MessageType", Type: "ordinary", AllowMissingID: true}}),
		inbox.On("ordinary", inbox.Func("ordinary", func(_ context.Context, m handler.Message[[]byte]) error {
			if string(m.Payload) == last {
				handled <- struct{}{}
			}
			return nil
		})),
		// These events come by the million. A slower handler would delay the records after them.
		inbox.On("event", inbox.Func("event", func(context.Context, handler.Message[[]byte]) error { return nil })),
		inbox.On("quoted", inbox.Func("quoting", func(_ context.Context, m handler.Message[[]byte]) error {
			return handler.Poison(fmt.Errorf("cannot read %q", m.Payload))
		})),
	}
	switch mode {
	case "inline":
		options = append(options, inbox.Inline())
	case "direct":
		options = append(options, inbox.Direct())
	}
	ib, err := inbox.New("hostile", db, inbox.Configure(func(o *inbox.Options) { o.Migrate, o.Logger = true, log }),
		inbox.Channel("c", options...))
	if err != nil {
		return err
	}
	began := time.Now()
	if err := ib.Start(context.Background()); err != nil {
		return err
	}
	if says != "" {
		err = awaitHealth(ib, says)
	}
	if skip {
		err = errors.Join(err, skipFirst(ib, topic))
	}
	if last != "" {
		select {
		case <-handled:
		case <-time.After(2 * time.Minute):
			err = errors.Join(err, errors.New("the record behind the hostile one was not handled"))
		}
	}
	stopping, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	took, began := time.Since(began), time.Now()
	err = errors.Join(err, ib.Stop(stopping))
	stop := time.Since(began)
	var messages, rejected int64
	err = errors.Join(err, db.Model(&models.Message{}).Count(&messages).Error,
		db.Model(&models.RejectedMessage{}).Count(&rejected).Error)
	var reason string
	err = errors.Join(err, db.Model(&models.RejectedMessage{}).Select("reason").Limit(1).Scan(&reason).Error)
	fmt.Printf("messages=%d rejected=%d peak=%q took=%s cpu=%s stop=%s logged=%d reason=%q\n", messages, rejected, peak(),
		took.Round(time.Millisecond), cpu().Round(time.Millisecond), stop.Round(time.Millisecond), logged.bytes.Load(),
		reason[:min(len(reason), 200)])
	return err
}

// skipFirst requests to skip the first record, until a heartbeat has stored that its partition is halted.
func skipFirst(ib *inbox.Inbox, topic string) error {
	operators, err := ib.Ops()
	if err != nil {
		return err
	}
	often := time.NewTicker(50 * time.Millisecond)
	defer often.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-often.C {
		err := operators.SkipRecord(context.Background(), "ada", ops.PartitionRef{Channel: "c", Topic: topic})
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// counter counts what is written to it.
type counter struct{ bytes atomic.Int64 }

func (c *counter) Write(line []byte) (int, error) {
	c.bytes.Add(int64(len(line)))
	return len(line), nil
}

// cpu returns the CPU time that the process has used.
func cpu() time.Duration {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// awaitHealth waits until the consumer's health contains text, and prints it.
func awaitHealth(ib *inbox.Inbox, text string) error {
	often := time.NewTicker(10 * time.Millisecond)
	defer often.Stop()
	timeout := time.After(time.Minute)
	for {
		var said error
		for _, c := range ib.Health().Consumers {
			if said = errors.Join(said, c.Err()); said != nil && strings.Contains(said.Error(), text) {
				fmt.Printf("channel=%s state=%s health: %s\n", c.Channel, c.State, strings.ReplaceAll(said.Error(), "\n", "; "))
				return nil
			}
		}
		select {
		case <-often.C:
		case <-timeout:
			return fmt.Errorf("health never said %q, the last was: %w", text, said)
		}
	}
}

// peak returns the peak memory use, if the system reports it (Linux).
func peak() string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "unknown"
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}
