package main

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// agreesWithMetrics compares what Prometheus would read with the databases, series by series. Gauges are
// sampled, so they may lag behind.
func (v *visit) agreesWithMetrics(ctx context.Context) error {
	result, err := v.ReadResult(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]float64{}
	for i, in := range []Inbox{result.Orders, result.Shipping} {
		c := contexts[i]
		accepted := 0
		for _, messageType := range in.Messages {
			if messageType == c.messageType {
				accepted++
			}
		}
		wanted[series("inbox_messages_accepted_total", c.name, "inbox_channel", c.channel)] = float64(accepted)
		wanted[series("inbox_records_rejected_total", c.name, "inbox_channel", c.channel)] = float64(in.Rejected)
		for _, key := range c.handlers {
			var completed, poisoned float64
			for _, s := range in.Statuses[key] {
				if s.Processed() {
					completed++
				}
				if s.Poisoned {
					poisoned++
				}
			}
			wanted[series("inbox_attempts_processed_total", c.name, "inbox_handler_key", key)] = completed
			wanted[series("inbox_statuses_poisoned_total", c.name, "inbox_handler_key", key)] = poisoned
			wanted[series("inbox_backlog_poisoned", c.name, "inbox_handler_key", key)] = poisoned
			wanted[series("inbox_backlog_due", c.name, "inbox_handler_key", key)] = 0
		}
		wanted[series("inbox_workers", c.name)] = 1
	}
	return v.eventually(ctx, func(ctx context.Context) error {
		page, err := v.anonymous.Page(ctx, "metrics")
		if err != nil {
			return err
		}
		found := readMetrics(page)
		if differ := differences(wanted, found); len(differ) > 0 {
			return fmt.Errorf("%d of %d series differ: %s (gauges are of %.1f s ago in orders, %.1f s in shipping)", len(differ),
				len(wanted), strings.Join(differ, "; "),
				found[series("inbox_sample_age_seconds", orders.Name)], found[series("inbox_sample_age_seconds", shipping.Name)])
		}
		return nil
	})
}

// series names one of an inbox, with its labels in order.
func series(name, inbox string, label ...string) string {
	labels := fmt.Sprintf("inbox_name=%q", inbox)
	if len(label) == 2 {
		labels = fmt.Sprintf("%s=%q,", label[0], label[1]) + labels
	}
	return name + "{" + labels + "}"
}

var metricLine = regexp.MustCompile(`(?m)^(\w+\{[^}]*\}) (\S+)$`)

// readMetrics reads Prometheus' text format: the values by series.
func readMetrics(page string) map[string]float64 {
	values := map[string]float64{}
	for _, line := range metricLine.FindAllStringSubmatch(page, -1) {
		if value, err := strconv.ParseFloat(line[2], 64); err == nil {
			values[line[1]] = value
		}
	}
	return values
}

func differences(wanted, found map[string]float64) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		value, ok := found[name]
		switch {
		case !ok:
			all = append(all, fmt.Sprintf("%s is missing", name))
		case value != wanted[name]:
			all = append(all, fmt.Sprintf("%s is %v, the database has %v", name, value, wanted[name]))
		}
	}
	return all
}
