// Command hostile consumes a topic with default settings into a new SQLite file. It is run by a
// test that limits its memory. When the consumer's health contains a given text, it prints the
// health. When a given record has been handled, it prints how many messages and rejected records
// are stored and its peak memory use, and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

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
)

func main() {
	broker, topic, dsn := flag.String("broker", "", "host:port"), flag.String("topic", "", "what to consume"),
		flag.String("db", "", "DSN of an empty database")
	last := flag.String("last", "", "content of the record to wait for")
	says := flag.String("says", "", "text to wait for in the consumer's health; empty does not wait")
	flag.Parse()
	if err := run(*broker, *topic, *dsn, *last, *says); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(broker, topic, dsn, last, says string) error {
	dialector := gorm.Dialector(sqlite.Dialector{DriverName: "sqlite", DSN: dsn})
	if strings.HasPrefix(dsn, "postgres") {
		dialector = postgres.Open(dsn)
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return err
	}
	handled := make(chan struct{}, 1)
	ib, err := inbox.New("hostile", db, inbox.Configure(func(o *inbox.Options) { o.Migrate = true }), inbox.Channel("c",
		inbox.Kafka(kafkaconsumer.Config{Brokers: []string{broker}, Topics: []string{topic}, GroupID: "g",
			Decoder: envelope.DecoderConfig{Type: "ordinary", AllowMissingID: true}}),
		inbox.On("ordinary", inbox.Func("ordinary", func(_ context.Context, m handler.Message[[]byte]) error {
			if string(m.Payload) == last {
				handled <- struct{}{}
			}
			return nil
		})),
		// These events come by the million. A slower handler would delay the records after them.
		inbox.On("event", inbox.Func("event", func(context.Context, handler.Message[[]byte]) error { return nil })),
	))
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
	select {
	case <-handled:
	case <-time.After(2 * time.Minute):
		err = errors.Join(err, errors.New("the record behind the hostile one was not handled"))
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
	fmt.Printf("messages=%d rejected=%d peak=%q took=%s stop=%s reason=%q\n", messages, rejected, peak(),
		took.Round(time.Millisecond), stop.Round(time.Millisecond), reason)
	return err
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
