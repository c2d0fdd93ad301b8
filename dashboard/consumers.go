package dashboard

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"

	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox/internal/health"
	"github.com/gorm-inbox/inbox/internal/telemetry"
	"github.com/gorm-inbox/inbox/ops"
)

// maxPartitions bounds how many partitions a page shows, halted ones first.
const maxPartitions = 1000

type consumersBody struct {
	// Halted are the halted partitions, in the order of the consumers.
	Halted    []haltedPartition
	Consumers []consumerView
	// Topics are how far the topics of all channels are read, the one furthest behind first.
	Topics []ops.TopicProgress
}

type haltedPartition struct {
	Consumer *ops.Consumer
	ops.ConsumedPartition
}

// consumerView is a consumer with as many of its partitions as the page shows.
type consumerView struct {
	ops.Consumer
	// Listed are sorted by topic and number. Left counts the partitions that are not shown.
	Listed []ops.ConsumedPartition
	Left   int
}

func (q *request) consumers() error {
	consumers, err := q.d.ops.Consumers(q.r.Context())
	if err != nil {
		return err
	}
	topics, err := q.d.ops.Progress(q.r.Context())
	if err != nil {
		return err
	}
	b := consumersBody{Topics: topics}
	shown := 0
	for i := range consumers {
		c := &consumers[i]
		for _, p := range c.Partitions {
			if p.Halted && len(b.Halted) < maxPartitions {
				b.Halted = append(b.Halted, haltedPartition{c, p})
			}
		}
		view := consumerView{Consumer: *c, Listed: c.Partitions[:min(len(c.Partitions), maxPartitions-shown)]}
		shown += len(view.Listed)
		view.Left = c.Unlisted + len(c.Partitions) - len(view.Listed)
		slices.SortFunc(view.Listed, func(a, b ops.ConsumedPartition) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
		})
		b.Consumers = append(b.Consumers, view)
	}
	return q.render("consumers", "Consumers", "consumers", b)
}

// haltFields are the query parameters that name a halt.
var haltFields = []string{"channel", "topic", "partition", "offset", "gap"}

func addressOfHalt(at ops.PartitionRef) url.Values {
	values := url.Values{"channel": {at.Channel}, "topic": {at.Topic}, "partition": {strconv.Itoa(int(at.Partition))},
		"offset": {strconv.FormatInt(at.Offset, 10)}}
	if at.AfterGap {
		values.Set("gap", "yes")
	}
	return values
}

// haltIn returns the halt that an address or a form names.
func haltIn(values url.Values) (ops.PartitionRef, error) {
	partition, err := strconv.ParseInt(values.Get("partition"), 10, 32)
	if err != nil {
		return ops.PartitionRef{}, badInput("The address does not name a partition.")
	}
	offset, err := strconv.ParseInt(values.Get("offset"), 10, 64)
	if err != nil {
		return ops.PartitionRef{}, badInput("The address does not name an offset.")
	}
	return ops.PartitionRef{Channel: values.Get("channel"), Topic: values.Get("topic"), Partition: int32(partition),
		Offset: offset, AfterGap: values.Get("gap") == "yes"}, nil
}

// confirmHaltBody is the data of the page that asks to confirm an action that skips a record.
type confirmHaltBody struct {
	ops.PartitionRef
	Form, Heading, Button, Warning string
}

func (q *request) confirmSkip() error {
	return q.confirmHalt(confirmHaltBody{Heading: "Skip this record?", Button: "Skip the record", Form: "./skip-record?",
		Warning: "The record is kept as rejected, unchanged and with the reason of the halt. No handler processes it. The partition goes on with the next record. If the cause can be fixed, fix it and resume the partition instead."})
}

func (q *request) confirmResume() error {
	return q.confirmHalt(confirmHaltBody{Heading: "Go on without the missing records?", Button: "Resume",
		Form:    "./resume-partition?",
		Warning: "The records that should be read next no longer exist. The partition goes on with what the log holds, and the range is listed under Gaps. Ask the producer what the missing records contained."})
}

func (q *request) confirmHalt(b confirmHaltBody) (err error) {
	if b.PartitionRef, err = haltIn(q.query); err != nil {
		return err
	}
	b.AfterGap = b.Button == "Resume" // only that is confirmed
	b.Form += addressOfHalt(b.PartitionRef).Encode()
	return q.render("confirm-halt", b.Heading, "consumers", b)
}

func (q *request) skipRecord() error { return q.requestAt("skip-requested", q.d.ops.SkipRecord) }

func (q *request) resumePartition() error {
	return q.requestAt("resume-requested", q.d.ops.ResumePartition)
}

// confirmForget asks to confirm that cleanup no longer waits for a topic.
func (q *request) confirmForget() error {
	return q.render("confirm-forget", "Forget this topic?", "consumers", topicIn(q.query))
}

func (q *request) forgetTopic() error {
	topic := topicIn(q.given())
	if err := q.d.ops.ForgetTopic(q.r.Context(), q.actor(), topic); err != nil {
		return err
	}
	q.log("topic-forgotten", zap.String(telemetry.FieldChannel, topic.Channel),
		zap.String(telemetry.FieldGroup, topic.GroupID), zap.String(telemetry.FieldTopic, topic.Topic))
	return q.redirect("./consumers?" + noticeQuery("topic-forgotten").Encode())
}

// topicIn returns the topic that an address or a form names.
func topicIn(values url.Values) ops.TopicRef {
	return ops.TopicRef{Channel: values.Get("channel"), GroupID: values.Get("group"), Topic: values.Get("topic")}
}

func (q *request) requestAt(done string, act func(context.Context, ops.Actor, ops.PartitionRef) error) error {
	at, err := haltIn(q.given())
	if err == nil {
		err = act(q.r.Context(), q.actor(), at)
	}
	if err != nil {
		return err
	}
	q.log(done, zap.String(telemetry.FieldChannel, at.Channel), zap.String(telemetry.FieldTopic, at.Topic),
		zap.Int32(telemetry.FieldPartition, at.Partition), zap.Int64(telemetry.FieldOffset, at.Offset))
	return q.redirect("./consumers?" + noticeQuery(done).Encode())
}

// haltsIn counts the halted partitions among health reasons.
func haltsIn(reasons []ops.HealthReason) (halts int) {
	for _, r := range reasons {
		if r.Code == health.Halted {
			halts++
		}
	}
	return halts
}
