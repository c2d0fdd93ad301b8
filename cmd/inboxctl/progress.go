package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/gorm-inbox/inbox/ops"
)

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
