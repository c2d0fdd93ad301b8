package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

func newConsumers(a *app) *cobra.Command {
	var halted, wide bool
	cmd := &cobra.Command{
		Use: "consumers", Short: "Kafka consumers with their partitions, lags and halts",
		Long: `Lists the partitions of the Kafka consumers of all living workers, as of each
worker's last heartbeat. POSITION is the next offset to accept: a halted partition
is halted before it. A "?" is unknown, such as the LAG while the broker does not
answer. A worker stores 100 partitions: the halted ones first, then those with a
problem, then those with the largest lag.

  halted     waits for "inboxctl resume-partition" or "inboxctl skip-record"
  failing    fetching fails, and is tried again
  accepting  records are being accepted. On an Inline or Direct channel they are
             handled: a handler may run, fail or be paused meanwhile
  fetching   nothing waits to be accepted

After them come the topics that hold cleanup back, if there are any: see "inboxctl
progress".

JSON: a list of ops.Consumer.`,
		Example: `  inboxctl consumers
  inboxctl consumers --halted --wide`,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				consumers, err := o.Consumers(ctx)
				if err != nil {
					return err
				}
				if halted {
					consumers = onlyHalted(consumers)
				}
				topics, err := o.Progress(ctx)
				if err != nil {
					return err
				}
				return a.print(consumers, func() {
					writeConsumers(a.out, consumers, halted, wide)
					if !halted {
						writeObstacles(a.out, topics)
					}
				})
			})
		},
	}
	cmd.Flags().BoolVar(&halted, "halted", false, "only halted partitions")
	cmd.Flags().BoolVar(&wide, "wide", false, "show whole problems")
	return cmd
}

// onlyHalted returns the consumers that have halted partitions, with these partitions.
func onlyHalted(consumers []ops.Consumer) (with []ops.Consumer) {
	for _, c := range consumers {
		halted := slices.DeleteFunc(slices.Clone(c.Partitions), func(p ops.ConsumedPartition) bool { return !p.Halted })
		if c.Partitions, c.Unlisted = halted, 0; len(halted) > 0 {
			with = append(with, c)
		}
	}
	return with
}

func writeConsumers(w io.Writer, consumers []ops.Consumer, halted, wide bool) {
	t := newTable("CHANNEL", "PARTITION", "STATE", ">POSITION", ">COMMITTED", ">LAG", "HOST", ">PID", "NOTE").
		limit("NOTE", errorLimit(wide))
	t.none = "No consumers: no living worker has a channel with a Kafka topic."
	if halted {
		t.none = "No partition is halted."
	}
	for _, c := range consumers {
		if len(c.Partitions) == 0 || c.Problem != "" {
			t.add(c.Channel, "", c.State, "", "", known(c.Lag), c.Host, number(c.PID), c.Problem)
		}
		for _, p := range c.Partitions {
			note := p.Problem
			if r := p.Request; r != nil {
				note = fmt.Sprintf("%s requested by %s; %s", r.Decision, r.Actor, note)
			}
			t.add(c.Channel, fmt.Sprintf("%s/%d", p.Topic, p.Partition), p.State, known(p.Position), known(p.Committed),
				known(p.Lag), c.Host, number(c.PID), note)
		}
		if c.Unlisted > 0 {
			t.add(c.Channel, "", "", "", "", "", c.Host, number(c.PID), fmt.Sprintf("%d more partitions", c.Unlisted))
		}
	}
	t.write(w)
}

// known formats a number that is negative while it is unknown.
func known(n int64) string {
	if n < 0 {
		return "?"
	}
	return number(n)
}

const haltHelp = `Name the channel, and the partition with the offset before which it is halted, as
"inboxctl consumers" shows them. The command stores a request, which the consumer
carries out within seconds, or the partition's next owner does. A request for
another offset than the one at which the partition is halted is refused. An hour
later it expires.

With --wait the command ends once the request is carried out and a heartbeat of the
partition's worker says that it goes on. If it is not carried out in time, or the
partition has halted there again, the exit code is 6, and the error says why.

JSON: {"channel", "topic", "partition", "offset", "after_gap", "outcome"}.`

func newResumePartition(a *app) *cobra.Command {
	cmd := newHaltCommand(a, "resume-partition", "resume", "resumed", (*ops.Ops).ResumePartition)
	cmd.Short = "Let a halted partition go on"
	cmd.Long = `Lets the consumer of a halted partition read the record or the batch again. If the
cause is not fixed, the partition halts again. After a gap in the log, or where the
topic was created again, the partition goes on without the records that are gone,
and "inboxctl gaps" lists them. inboxctl then asks for confirmation, unless --yes is
given.

` + haltHelp
	cmd.Example = `  inboxctl resume-partition orders orders.v1/3@1042`
	return cmd
}

func newSkipRecord(a *app) *cobra.Command {
	cmd := newHaltCommand(a, "skip-record", "skip", "skipped", (*ops.Ops).SkipRecord)
	cmd.Short = "Keep the record that halts a partition as rejected, and go on"
	cmd.Long = `Lets the consumer of a halted partition keep the record at the offset as rejected,
unchanged, and go on after it. No handler processes the record. "inboxctl rejected"
lists it. Only a halt about one record allows that: the record is bad or has no
handler. inboxctl asks for confirmation, unless --yes is given.

` + haltHelp
	cmd.Example = `  inboxctl skip-record orders orders.v1/3@1042`
	return cmd
}

var haltedAt = regexp.MustCompile(`^(.+)/(\d{1,9})@(\d{1,18})$`)

// haltOf parses the arguments that name a halt.
func haltOf(args []string) (at ops.PartitionRef, err error) {
	switch {
	case len(args) < 2:
		return at, misuse("the channel and TOPIC/PARTITION@OFFSET are required, \"inboxctl consumers\" shows them")
	case len(args) > 2:
		return at, misuse("unexpected argument %q", args[2])
	}
	parts := haltedAt.FindStringSubmatch(args[1])
	if parts == nil {
		return at, misuse("partition %q: must be TOPIC/PARTITION@OFFSET, such as orders.v1/3@1042", args[1])
	}
	partition, err := strconv.ParseInt(parts[2], 10, 32)
	offset, other := strconv.ParseInt(parts[3], 10, 64)
	if err = errors.Join(err, other); err != nil {
		return at, misuse("partition %q: %w", args[1], err)
	}
	return ops.PartitionRef{Channel: args[0], Topic: parts[1], Partition: int32(partition), Offset: offset}, nil
}

func newHaltCommand(a *app, name, verb, done string,
	act func(o *ops.Ops, ctx context.Context, actor ops.Actor, at ops.PartitionRef) error,
) *cobra.Command {
	var yes bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: name + " CHANNEL TOPIC/PARTITION@OFFSET",
		Args: func(_ *cobra.Command, args []string) error {
			_, err := haltOf(args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := haltOf(args)
			if err != nil {
				return err
			}
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				question := ""
				if verb == "skip" {
					question = "The record is kept as rejected, and no handler processes it. Skip it"
				} else if gone, err := afterGap(ctx, o, at); err != nil {
					return err
				} else if gone {
					at.AfterGap = true
					question = "The records that should be read next are gone. Go on without them"
				}
				if question != "" && !yes {
					if err := a.agree(ctx, question); err != nil {
						return err
					}
				}
				if err := act(o, ctx, a.who(), at); err != nil {
					return err
				}
				result := struct {
					ops.PartitionRef
					Outcome string
				}{at, verb + " requested"}
				line := "requested to " + verb
				var waited error
				if wait > 0 {
					if waited = await(ctx, o, at, wait); waited == nil {
						result.Outcome, line = done, done
					}
				}
				return errors.Join(a.print(result, func() { fmt.Fprintf(a.out, "%s %s\n", line, oneLine(args[1])) }), waited)
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait for the effect, at most for so long (with --wait alone 30s)")
	cmd.Flags().Lookup("wait").NoOptDefVal = "30s"
	return cmd
}

// await waits until a request is carried out.
func await(ctx context.Context, o *ops.Ops, at ops.PartitionRef, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return o.AwaitPartition(ctx, at)
}

// afterGap reports whether a worker reports the partition as halted there because records are gone.
func afterGap(ctx context.Context, o *ops.Ops, at ops.PartitionRef) (bool, error) {
	consumers, err := o.Consumers(ctx)
	for _, c := range consumers {
		for _, p := range c.Partitions {
			if at == (ops.PartitionRef{Channel: c.Channel, Topic: p.Topic, Partition: p.Partition, Offset: p.Position}) &&
				p.AfterGap {
				return true, err
			}
		}
	}
	return false, err
}

func newProgress(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "progress", Short: "What consumed topics have caught up to, and so what cleanup waits for",
		Long: `Lists the topics of all channels and groups, the one furthest behind first. CAUGHT UP
is a moment: everything that was in the topic then is accepted. Cleanup keeps what
redeliveries may need that came later, and everything while a partition has never
been read to its end (UNREAD).

A topic that workers no longer declare holds cleanup back for seven days in which
other workers run. "inboxctl forget-topic" ends that at once.

JSON: a list of ops.TopicProgress.`,
		Example: `  inboxctl progress`,
		Args:    noArgs, RunE: view(a, (*ops.Ops).Progress, writeProgress),
	}
}

func writeProgress(w io.Writer, topics []ops.TopicProgress) {
	t := newTable("CHANNEL", "GROUP", "TOPIC", ">PARTITIONS", ">UNREAD", "CAUGHT UP", "NOTE")
	t.none = "No topics: no worker has had an Inbox or Inline channel with Kafka."
	for _, p := range topics {
		caughtUp, note := "never", ""
		if !p.CaughtUpAt.IsZero() {
			caughtUp = p.CaughtUpAt.Format(time.RFC3339)
		}
		if p.Removed {
			note = "not declared by a worker since " + p.DeclaredAt.Format(time.RFC3339)
		}
		if p.Obstacle != "" {
			note = "cleanup waits: " + p.Obstacle
		}
		t.add(p.Channel, p.GroupID, p.Topic, number(p.Partitions), number(p.Unread), caughtUp, note)
	}
	t.write(w)
}

// writeObstacles writes what cleanup waits for, and what ends that.
func writeObstacles(out io.Writer, topics []ops.TopicProgress) {
	held := slices.DeleteFunc(slices.Clone(topics), func(t ops.TopicProgress) bool { return t.Obstacle == "" })
	if len(held) == 0 {
		return
	}
	fmt.Fprintln(out, "\nCleanup keeps what redeliveries in these topics may need:")
	writeProgress(out, held)
	fmt.Fprintln(out, "It goes on once they are read.")
	if slices.ContainsFunc(held, func(t ops.TopicProgress) bool { return t.Removed }) {
		fmt.Fprintln(out, "\"inboxctl forget-topic CHANNEL GROUP TOPIC\" ends the waiting for what no worker declares.")
	}
}

func newForgetTopic(a *app) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "forget-topic CHANNEL GROUP TOPIC", Short: "Let cleanup no longer wait for a topic that was removed",
		Long: `Forgets what the partitions of a topic have caught up to that no worker declares any
more: the channel, its group or the topic was removed. Cleanup then no longer waits
for them. If the topic is consumed by that group after all, redeliveries in it may
run again whose messages were cleaned up meanwhile.

A topic that workers declare, or declared within the last ten minutes, is refused:
it is to be consumed. inboxctl asks for confirmation, unless --yes is given.

JSON: {"channel", "group_id", "topic", "outcome"}.`,
		Example: `  inboxctl forget-topic orders shop orders.v1`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 3 {
				return misuse("the channel, the group and the topic are required, \"inboxctl progress\" shows them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			topic := ops.TopicRef{Channel: args[0], GroupID: args[1], Topic: args[2]}
			return a.audited(cmd.Context(), func(ctx context.Context, o *ops.Ops) error {
				if !yes {
					if err := a.agree(ctx, "Redeliveries in the topic may then run again. Forget it"); err != nil {
						return err
					}
				}
				if err := o.ForgetTopic(ctx, a.who(), topic); err != nil {
					return err
				}
				result := struct {
					ops.TopicRef
					Outcome string
				}{topic, "forgotten"}
				return a.print(result, func() { fmt.Fprintf(a.out, "forgot topic %s\n", oneLine(topic.Topic)) })
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
