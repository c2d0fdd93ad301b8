package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/cleanup"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/clock"
	"github.com/gorm-inbox/inbox/internal/secrets"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
)

func newCleanup(a *app) *cobra.Command {
	var (
		retention        string
		application, yes bool
		wait             time.Duration
	)
	cmd := &cobra.Command{
		Use: "cleanup --retention AGE|--application", Short: "Delete statuses that ended longer ago than an age",
		Long: `Deletes completed, discarded and superseded statuses that ended longer ago than
--retention, then messages without statuses, in batches, while it holds the lease
of cleanup. It never deletes what is pending, processing, poisoned or rejected.

An application with the option Retention does this itself. With --application a
running process of it does it now, by its own options. inboxctl does not know these,
so use --retention for inboxes without Retention:

  - it ignores retentions of single handlers, and it calls no archive function
    before it deletes rows;
  - a message that is delivered again after it was deleted is new, and all of its
    handlers run again: choose an age longer than any redelivery takes.

It keeps what redeliveries may need that consumers have not read yet: "inboxctl
progress" shows which topics are behind.

Ctrl-C stops it between batches. It then prints what was deleted.

With --application:

` + requestHelp + `

JSON: handler.Deleted with "error".`,
		Example: `  inboxctl cleanup --retention 30d
  inboxctl cleanup --retention 720h --yes
  inboxctl cleanup --application`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			if application {
				if retention != "" {
					return misuse("use either --retention or --application, which knows its retentions")
				}
				return a.requestCleanup(cmd.Context(), yes, wait)
			}
			if cmd.Flags().Changed("wait") {
				return misuse("--wait is for --application; without it the command cleans up by itself")
			}
			length, err := parseAge(retention)
			if err == nil {
				err = a.checkActor()
			}
			if err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), false, func(ctx context.Context, db *gorm.DB) error {
				return a.cleanup(ctx, db, length, yes)
			})
		},
	}
	cmd.Flags().StringVar(&retention, "retention", "",
		"how long completed statuses are kept, such as 720h or 30d; more than 0")
	cmd.Flags().BoolVar(&application, "application", false, "have the application do it, by its own retentions")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	bindWait(cmd, &wait, 10*time.Minute)
	return cmd
}

func parseAge(text string) (time.Duration, error) {
	if text == "" {
		return 0, misuse("--retention is required, such as --retention 30d, or --application")
	}
	d, err := time.ParseDuration(text)
	if days := daysAgo.FindStringSubmatch(text); days != nil {
		var n int64
		n, err = strconv.ParseInt(days[1], 10, 64)
		d = time.Duration(n) * 24 * time.Hour
		if n > 36_500 { // a hundred years; much longer durations overflow
			d = 0
		}
	}
	if err != nil || d <= 0 {
		return 0, misuse("--retention = %q: must be an age above 0 such as 720h or 30d", text)
	}
	return d, nil
}

func (a *app) cleanup(ctx context.Context, db *gorm.DB, retention time.Duration, yes bool) error {
	cleaner, err := a.cleaner(db, retention)
	if err != nil {
		return err
	}
	o, err := a.ops(db, cleaner.Clean)
	if err == nil {
		err = a.checkSchema(ctx, o)
	}
	if err != nil {
		return err
	}
	overview, err := o.Overview(ctx)
	if err != nil {
		return err
	}
	if !yes {
		question := fmt.Sprintf("Delete statuses of inbox %q that ended more than %s ago,", overview.Inbox, age(retention))
		if err := a.agree(ctx, question); err != nil {
			return err
		}
	}
	deleted, err := o.Cleanup(ctx, a.who())
	return a.reportDeleted(deleted, err)
}

// reportDeleted prints what a cleanup has deleted and returns how it ended.
func (a *app) reportDeleted(deleted handler.Deleted, err error) error {
	report := struct {
		handler.Deleted
		Error string
	}{Deleted: deleted}
	if err != nil {
		report.Error = secrets.Mask(err.Error())
	}
	printed := a.print(report, func() {
		fmt.Fprintf(a.out,
			"deleted %d statuses and %d messages, and %d workers and %d leases of processes that are gone\n",
			deleted.Statuses, deleted.Messages, deleted.Workers, deleted.Leases)
	})
	if err != nil && deleted != (handler.Deleted{}) {
		err = &codedError{exitPartly, err}
	}
	return errors.Join(err, printed)
}

func (a *app) cleaner(db *gorm.DB, retention time.Duration) (*cleanup.Cleaner, error) {
	st, err := stores.New(db, a.naming(), store.Options{})
	if err != nil {
		return nil, fmt.Errorf("cleanup: %w", err)
	}
	options := cleanup.DefaultOptions()
	options.Retention = retention
	cleaner, err := cleanup.New(cleanup.Config{Store: st, Options: options, EveryHandler: true,
		StatementTimeout: a.timeout, Clock: clock.System{}, Logger: zap.NewNop()})
	if err != nil {
		return nil, &codedError{exitMisuse, err}
	}
	return cleaner, nil
}
