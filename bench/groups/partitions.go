package groups

import (
	"context"
	"fmt"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/bench/ours"
	"github.com/gorm-inbox/inbox/bench/server"
	"github.com/gorm-inbox/inbox/bench/trial"
)

const (
	retentionDelete  = "delete rows"
	retentionDrop    = "drop partitions"
	processPlain     = "process, plain"
	processPartition = "process, 8 partitions"
)

// Partitions measures what the partitioned layout gives a cleanup and costs processing.
func Partitions() trial.Group {
	return trial.Group{
		Name: "partitions", Unit: "message",
		About: "a cleanup of expired messages in one batch, in the plain layout and in partitions; then processing in both",
		Variants: []trial.Variant{
			{Name: retentionDelete, New: cleanExpired(false)},
			{Name: retentionDrop, New: cleanExpired(true)},
			{Name: processPlain, New: processOurs(processCount, processQuick, processOptions()...)},
			{Name: processPartition, New: processPartitioned},
		},
		Lines: []trial.Line{
			trial.Ratio("retention_drop_vs_delete", retentionDrop, retentionDelete, 0),
			trial.Ratio("process_partitioned_vs_plain", processPartition, processPlain, 0),
		},
	}
}

// cleanExpired deletes all messages of a database, which have expired.
func cleanExpired(partitioned bool) newTrial {
	return func(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
		n := env.Scale(300_000, 60_000)
		filled := &expired{&server.Database{DSN: env.DSN}}
		if err := filled.fill(ctx, n-1); err != nil { // a template is another message
			return nil, err
		}
		ib, err := ours.Open(ctx, env.DSN, 1, inbox.Configure(func(o *inbox.Options) {
			o.Cleanup.Retention = retention
			o.Cleanup.CleanupBatchSize = n + 1
		}))
		if err != nil {
			return nil, err
		}
		if partitioned {
			if err := inbox.Partition(ctx, ib.DB, ib.Tables()); err != nil {
				ib.Close()
				return nil, err
			}
		}
		t := &trial.Trial{Count: n, Close: ib.Close}
		t.Run = func(ctx context.Context) error {
			deleted, err := ib.Cleanup(ctx)
			if err == nil && deleted.Messages != int64(n) {
				err = fmt.Errorf("cleanup deleted %d messages of %d", deleted.Messages, n)
			}
			return err
		}
		t.Check = func(ctx context.Context) error { return ib.CheckStored(ctx, 0, 0, 0) }
		return t, nil
	}
}

// processPartitioned processes messages in the last of eight partitions.
func processPartitioned(ctx context.Context, env *trial.Env) (*trial.Trial, error) {
	ib, err := ours.Open(ctx, env.DSN, 1, processOptions()...)
	if err != nil {
		return nil, err
	}
	if err := partition(ctx, ib, 8); err != nil {
		ib.Close()
		return nil, err
	}
	return processStored(ctx, env, ib, env.Scale(processCount, processQuick), func(context.Context) error { return nil })
}

// partition makes partitions, of which the last one takes the messages.
func partition(ctx context.Context, ib *ours.Inbox, n int) error {
	if err := inbox.Partition(ctx, ib.DB, ib.Tables()); err != nil {
		return err
	}
	const size = 10_000_000_000
	db := ib.DB.WithContext(ctx)
	for slot := 2; slot < n; slot++ {
		for table, storage := range map[string]string{"inbox_parted_messages": "",
			"inbox_parted_handler_statuses": " WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.01, vacuum_index_cleanup = on)"} {
			err := db.Exec(fmt.Sprintf("CREATE TABLE %s_p%d PARTITION OF %[1]s FOR VALUES FROM (%[3]d) TO (%[4]d)%[5]s",
				table, slot, slot*size, (slot+1)*size, storage)).Error
			if err != nil {
				return fmt.Errorf("make partition %d: %w", slot, err)
			}
		}
	}
	return db.Exec("SELECT setval('inbox_message_ids_number_seq', ?)", (n-1)*size).Error
}
