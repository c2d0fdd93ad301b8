package operators

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// problem is one of a night's.
type problem struct {
	// happen starts the application and returns once the operator may be called.
	happen func(t *testing.T, s *shop)
	// inTerminal and inBrowser solve it. They know only what they have read there, and deploy fixes of what they found.
	inTerminal func(t *testing.T, s *shop, c *terminal)
	inBrowser  func(t *testing.T, s *shop, b *browser)
	// solved judges by the tables and the committed offsets.
	solved func(t *testing.T, s *shop)
}

// TestOperatorSolvesProblemsInTerminalAndInBrowser proves contract 11.1: each front end alone suffices.
func TestOperatorSolvesProblemsInTerminalAndInBrowser(t *testing.T) {
	program := build(t)
	for name, p := range night {
		solve := func(name string, with func(t *testing.T, s *shop)) {
			t.Run(name, func(t *testing.T) {
				inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
					s := newShop(t, d)
					p.happen(t, s)
					with(t, s)
					p.solved(t, s)
				})
			})
		}
		solve(name+"/inboxctl", func(t *testing.T, s *shop) { p.inTerminal(t, s, newTerminal(t, s, program)) })
		solve(name+"/dashboard", func(t *testing.T, s *shop) { p.inBrowser(t, s, newBrowser(t, s)) })
	}
}

func poison(text string) error { return handler.Poison(errors.New(text)) }

// only makes a handler fail for one message.
func only(failing string, err error) func(context.Context, string) error {
	return func(_ context.Context, id string) error {
		if id == failing {
			return err
		}
		return nil
	}
}

func always(err error) func(context.Context, string) error {
	return func(context.Context, string) error { return err }
}

var night = map[string]problem{
	"bad deploy poisons a handler": {
		happen: func(t *testing.T, s *shop) {
			s.breaks(mail, always(errors.New("render order-placed.tmpl: no value for delivery_date")))
			s.breaks(ship, only("o-3", poison("address line 2 is longer than 35 characters")))
			s.start(version{})
			s.send(orders, "id", "o-1", "o-2", "o-3", "o-4", "o-5")
			s.await(mail, map[string]int{"poisoned": 5})
			s.await(ship, map[string]int{"processed": 4, "poisoned": 1})
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			seen := read[overview](c, "status")
			require.True(t, slices.ContainsFunc(seen.Handlers, func(h handlerLine) bool { return h.Poisoned > 0 }))
			groups := read[failures](c, "failures").Groups
			worst := slices.MaxFunc(groups, func(a, b failureGroup) int { return cmp.Compare(a.Poisoned, b.Poisoned) })
			example := read[page[statusLine]](c, "list", "--fingerprint", worst.Fingerprint, "--limit", "1").Items[0]
			require.Contains(t, c.run("show", example.MessageID), "no value for delivery_date")
			s.fix(worst.HandlerKey)
			matched := read[bulk](c, "retry", "--matching", "--fingerprint", worst.Fingerprint, "--dry-run").Matched
			require.Equal(t, worst.Poisoned, matched)
			require.Equal(t, matched, read[bulk](c, "retry", "--matching", "--fingerprint", worst.Fingerprint, "--yes").Done)
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.follow("See the failures")
			cause := b.row("5 poisoned") // the largest group is the first one
			b.open(b.linkIn(cause, "o-"))
			b.says("no value for delivery_date")
			s.fix(strings.Fields(textOf(b.row("no value for delivery_date")))[0])
			b.follow("Similar failures")
			b.follow("Retry all that match")
			b.says("Retry 5 poisoned")
			b.press("Retry 5")
			b.await("Done.")
		},
		solved: func(t *testing.T, s *shop) {
			s.await(mail, map[string]int{"processed": 5})
			require.Equal(t, map[string]int{"processed": 4, "poisoned": 1}, s.states(ship), "another cause")
			require.Equal(t, 1, s.status(mail, "o-2").RequeuedCount)
		},
	},

	"one message is not to be handled": {
		happen: func(t *testing.T, s *shop) {
			s.breaks(ship, only("o-2", poison("the customer has cancelled the order")))
			s.start(version{})
			s.send(orders, "id", "o-1", "o-2", "o-3")
			s.await(ship, map[string]int{"processed": 2, "poisoned": 1})
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			poisoned := read[page[statusLine]](c, "list", "--state", "poisoned").Items
			require.Len(t, poisoned, 1)
			require.Contains(t, poisoned[0].LastError, "has cancelled the order")
			c.run("discard", fmt.Sprintf("%s@%d", poisoned[0].ID, poisoned[0].Version), "--reason", "cancelled by phone")
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.follow("See the failures")
			b.says("has cancelled the order")
			b.follow("o-")
			b.press("Discard")
			b.press("Discard 1", "Reason", "cancelled by phone")
			b.says("Discarded: it will not run again.")
		},
		solved: func(t *testing.T, s *shop) {
			require.Equal(t, map[string]int{"processed": 2, "discarded": 1}, s.states(ship))
			require.Equal(t, map[string]int{"processed": 3}, s.states(mail))
			s.requireReason(ops.ActionDiscard, "cancelled by phone")
		},
	},

	"bad record halts a partition": {
		happen: func(t *testing.T, s *shop) {
			s.start(version{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
				o.Acceptor.BadRecords = acceptor.BadRecordHalt
			})}})
			s.send(orders, "id", "o-1")
			s.await(mail, map[string]int{"processed": 1})
			s.send(orders, "", "o-2")
			s.send(orders, "id", "o-3", "o-4")
			s.awaitReason("halted_partition")
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			halted := read[[]consumer](c, "consumers", "--halted")[0]
			p := halted.Partitions[0]
			require.Contains(t, p.Problem, "no header id")
			require.True(t, p.Skippable)
			c.run("skip-record", halted.Channel, p.at(), "--yes", "--wait")
			require.Empty(t, read[[]consumer](c, "consumers", "--halted"))
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.await("is halted")
			b.follow("See the consumers")
			b.says("no header id")
			b.follow("Skip the record")
			b.press("Skip the record")
			b.says("the consumer keeps the record as rejected and goes on within seconds") // or has done so by now
			b.awaitNot("Halted partitions")
		},
		solved: func(t *testing.T, s *shop) {
			s.awaitCommitted(orders)
			s.await(mail, map[string]int{"processed": 3})
			require.Len(t, s.rejected(), 1)
			require.JSONEq(t, `{"id":"o-2"}`, string(s.rejected()[0].Value), "it is kept")
		},
	},

	"decoder rejects good records": {
		happen: func(t *testing.T, s *shop) {
			s.setBadIDs(errors.New("no rule for gift orders"))
			s.start(version{})
			s.send(orders, "gift-id", "g-1", "g-2", "g-3")
			s.send(orders, "", "broken")
			s.send(orders, "id", "o-1")
			s.awaitCommitted(orders)
			require.Len(t, s.rejected(), 4)
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			rejected := read[page[rejectedLine]](c, "rejected", "list").Items
			counts := map[string]int{}
			for _, r := range rejected {
				counts[r.Reason]++
			}
			slices.SortFunc(rejected, func(a, b rejectedLine) int { return counts[b.Reason] - counts[a.Reason] })
			most := rejected[0]
			require.Contains(t, most.Reason, "no rule for gift orders")
			require.Contains(t, c.run("rejected", "show", most.ID), "gift-id")
			s.setBadIDs(nil)
			matching := []string{"rejected", "accept", "--matching", "--channel", most.Channel, "--reason", most.Reason}
			require.Equal(t, counts[most.Reason], read[bulk](c, append(matching, "--dry-run")...).Matched)
			require.Equal(t, counts[most.Reason], read[bulk](c, append(matching, "--yes")...).Done)
			watch(c, "all are accepted", func(p page[rejectedLine]) bool {
				return !slices.ContainsFunc(p.Items, func(r rejectedLine) bool { return r.Reason == most.Reason })
			}, "rejected", "list")
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.follow("See the rejected records")
			common := textOf(b.linkIn(b.row("no rule for gift orders"), ""))
			b.press("Show", "Reason contains", common)
			b.says("3 on this page")
			b.follow(common)
			b.says("gift-id")
			s.setBadIDs(nil)
			b.follow("Rejected")
			b.press("Show", "Reason contains", common)
			b.follow("Accept all that match again")
			b.press("Accept 3 again")
			b.await("Done.")
		},
		solved: func(t *testing.T, s *shop) {
			s.await(ship, map[string]int{"processed": 4})
			require.Len(t, s.rejected(), 1)
			require.JSONEq(t, `{"id":"broken"}`, string(s.rejected()[0].Value))
		},
	},

	// A customer says that the parcel of order o-3 never came.
	"handler completed without doing its work": {
		happen: func(t *testing.T, s *shop) {
			s.start(version{})
			s.send(orders, "id", "o-1", "o-2", "o-3")
			s.await(ship, map[string]int{"processed": 3})
			s.await(mail, map[string]int{"processed": 3})
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			statuses := read[message](c, "show", "o-3").Statuses
			i := slices.IndexFunc(statuses, func(s messageStatus) bool { return strings.Contains(s.HandlerKey, "ship") })
			require.Equal(t, "completed", statuses[i].State)
			c.run("rerun", "o-3", "--handler", statuses[i].HandlerKey, "--reason", "the parcel never came", "--yes")
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.follow("Messages")
			b.press("Show", "Message ID", "o-3")
			b.follow("o-3")
			b.open(b.linkIn(b.row("orders.ship"), "Run again"))
			b.press("Run", "Reason", "the parcel never came")
			b.says("orders.ship")
		},
		solved: func(t *testing.T, s *shop) {
			s.await(ship, map[string]int{"processed": 3})
			for _, row := range inboxtest.Statuses(t, s.ib) {
				again := 0
				if row.ID == s.status(ship, "o-3").ID {
					again = 1
				}
				require.Equal(t, again, row.RequeuedCount, row.HandlerKey)
			}
			s.requireReason("rerun", "the parcel never came")
		},
	},

	"call hangs": {
		happen: func(t *testing.T, s *shop) {
			s.hangs(mail, "o-2", true)
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			stuck := longRunning(c)
			s.fix(stuck.HandlerKey)
			c.run("cancel", stuck.MessageIDs[0], "--handler", stuck.HandlerKey, "--yes")
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			s.fix(openStuck(b))
			b.follow("Cancel the call")
			b.press("Cancel the call")
		},
		solved: func(t *testing.T, s *shop) {
			s.await(mail, map[string]int{"processed": 3})
			require.Contains(t, *s.status(mail, "o-2").LastError, "cancelled by operator "+operator)
			require.Equal(t, 1, s.status(mail, "o-2").ErrorCount)
		},
	},

	"call hangs and ignores its context": {
		happen: func(t *testing.T, s *shop) {
			s.hangs(mail, "o-2", false)
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			stuck := longRunning(c)
			s.fix(stuck.HandlerKey)
			c.run("release", stuck.MessageIDs[0], "--handler", stuck.HandlerKey, "--yes")
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			s.fix(openStuck(b))
			b.follow("Release the claim")
			b.press("Release")
		},
		solved: func(t *testing.T, s *shop) {
			s.await(mail, map[string]int{"processed": 3})
			require.Contains(t, s.audited(operator), ops.Action("release_claim"))
		},
	},

	"Inline handler fails": {
		happen: func(t *testing.T, s *shop) {
			s.breaks(book, only("p-2", errors.New("ledger answered 503")))
			s.start(version{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) {
				o.Processor.MaxRetries = 1 << 20 // the operator is faster
			})}})
			s.send(payments, "id", "p-1", "p-2", "p-3")
			s.awaitReason("failing_handler")
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			seen := read[overview](c, "status")
			i := slices.IndexFunc(seen.Handlers, func(h handlerLine) bool {
				return strings.Contains(h.Obstacle, "its partition waits")
			})
			failing := seen.Handlers[i].HandlerKey
			consumers := read[[]consumer](c, "consumers")
			i = slices.IndexFunc(consumers, func(c consumer) bool {
				return len(c.Partitions) > 0 && c.Partitions[0].Problem != ""
			})
			require.Contains(t, consumers[i].Partitions[0].Problem, "ledger answered 503")
			c.run("pause", failing)
			s.fix(failing)
			c.run("resume", failing)
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.await("its partition waits")
			b.says("ledger answered 503")
			b.follow("Handlers")
			failing := textOf(b.linkIn(b.row("its partition waits"), ""))
			b.press("Pause " + failing)
			s.fix(failing)
			b.press("Resume " + failing)
		},
		solved: func(t *testing.T, s *shop) {
			s.awaitCommitted(payments)
			var markers int64
			require.NoError(t, s.d.DB.Model(&models.Marker{}).Where("handler_key = ?", book).Count(&markers).Error)
			require.EqualValues(t, 3, markers)
			require.Empty(t, s.rejected())
			require.Equal(t, []ops.Action{ops.ActionPause, "resume"}, s.audited(operator))
		},
	},

	"records were deleted before they were read": {
		happen: func(t *testing.T, s *shop) {
			s.start(version{})
			s.send(orders, "id", "o-1", "o-2")
			s.awaitCommitted(orders)
			s.await(mail, map[string]int{"processed": 2})
			s.end()
			s.send(orders, "id", "o-3", "o-4", "o-5")
			require.NoError(t, s.kafka.DeleteRecords(orders, 0, 4))
			s.start(version{})
			s.awaitReason("halted_partition")
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			halted := read[[]consumer](c, "consumers", "--halted")[0]
			p := halted.Partitions[0]
			require.Contains(t, p.Problem, "2 records were deleted unread")
			require.True(t, p.AfterGap)
			c.run("resume-partition", halted.Channel, p.at(), "--yes", "--wait")
			require.Contains(t, c.run("gaps"), orders)
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.await("is halted")
			b.follow("See the consumers")
			b.says("2 records were deleted unread")
			b.follow("Resume")
			b.says("Go on without the missing records?")
			b.press("Resume")
			b.awaitNot("Halted partitions")
			b.follow("Gaps")
			b.says(orders)
		},
		solved: func(t *testing.T, s *shop) {
			s.awaitCommitted(orders)
			s.await(mail, map[string]int{"processed": 3})
			var gaps []models.Gap
			require.NoError(t, s.d.DB.Find(&gaps).Error)
			require.Len(t, gaps, 1)
			require.Equal(t, []int64{2, 4}, []int64{gaps[0].FromOffset, gaps[0].ToOffset})
		},
	},

	"messages were deleted by mistake": {
		happen: func(t *testing.T, s *shop) {
			s.start(version{})
			s.send(orders, "id", "o-1", "o-2", "o-3", "o-4")
			s.await(mail, map[string]int{"processed": 4})
			s.await(ship, map[string]int{"processed": 4})
			s.awaitCommitted(orders)
			o, err := s.ib.Ops()
			require.NoError(t, err)
			for _, id := range []string{"o-2", "o-3"} {
				require.NoError(t, o.Delete(t.Context(), "grace", ops.MessageRef{ID: id}, id))
			}
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			ofOrders := func(c consumer) bool { return c.Channel == "orders" && len(c.Partitions) > 0 }
			consumers := watch(c, "its partition", func(all []consumer) bool {
				return slices.ContainsFunc(all, ofOrders)
			}, "consumers")
			of := consumers[slices.IndexFunc(consumers, ofOrders)]
			again := []string{"read-again", of.Channel, "--topic", of.Partitions[0].Topic, "--from", "1h"}
			dry := read[reread](c, append(again, "--dry-run")...)
			require.Equal(t, []int{4, 2, 2}, []int{dry.Result.Read, dry.Result.Accepted, dry.Result.Duplicates})
			part := read[reread](c, append(again, "--yes", "--max", "3")...)
			require.Equal(t, []int{3, 2}, []int{part.Result.Read, part.Result.Accepted})
			rest := read[reread](c, again[0], again[1], again[2], again[3], "--yes", "--after", part.ID)
			require.Equal(t, []int{1, 0}, []int{rest.Result.Read, rest.Result.Accepted})
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.follow("Consumers")
			b.open(b.linkIn(b.row(orders+" orders"), "Read"))
			b.press("Count", "From", time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15:04"))
			b.await("Done.")
			b.says("Would be accepted 2")
			b.follow("Continue")
			b.press("Read again")
			b.await("Done.")
			b.says("Accepted 2")
		},
		solved: func(t *testing.T, s *shop) {
			s.await(mail, map[string]int{"processed": 4})
			s.await(ship, map[string]int{"processed": 4})
			require.Equal(t, map[int]int64{0: 4}, s.kafka.Committed(orders, orders))
			require.Equal(t, []ops.Action{ops.ActionReadAgain}, s.audited(operator))
		},
	},

	"new handler lacks old messages, and another is paused": {
		happen: func(t *testing.T, s *shop) {
			s.start(version{})
			s.send(orders, "id", "o-1", "o-2", "o-3")
			s.await(mail, map[string]int{"processed": 3})
			s.await(ship, map[string]int{"processed": 3})
			o, err := s.ib.Ops()
			require.NoError(t, err)
			require.NoError(t, o.Pause(t.Context(), "grace", mail))
			s.end()
			s.start(version{handlers: []*inbox.HandlerSpec{s.handler(loyalty)}})
			s.send(orders, "id", "o-4")
			s.await(ship, map[string]int{"processed": 4})
			s.await(loyalty, map[string]int{"processed": 1})
		},
		inTerminal: func(t *testing.T, s *shop, c *terminal) {
			seen := read[overview](c, "status")
			i := slices.IndexFunc(seen.Handlers, func(h handlerLine) bool { return h.Paused && h.Pending > 0 })
			paused := seen.Handlers[i].HandlerKey
			pauses := read[page[auditLine]](c, "audit", "--action", "pause").Items
			require.Equal(t, "grace", pauses[0].Actor)
			require.Contains(t, pauses[0].Target, paused)
			c.run("resume", paused)
			added := 0
			for _, h := range read[[]handlerLine](c, "handlers") {
				if strings.HasPrefix(h.HandlerKey, "payments.") {
					continue
				}
				lacks := read[bulk](c, "backfill", h.HandlerKey, "--from", "1h", "--dry-run").Matched
				if lacks > 0 {
					require.Equal(t, lacks, read[bulk](c, "backfill", h.HandlerKey, "--from", "1h", "--yes").Done)
					added += lacks
				}
			}
			require.Equal(t, 3, added)
		},
		inBrowser: func(t *testing.T, s *shop, b *browser) {
			b.follow("Handlers")
			paused := textOf(b.linkIn(b.row(" paused "), ""))
			b.press("Resume " + paused)
			b.says("Resumed")
			for _, link := range b.links("Backfill") {
				if strings.Contains(attribute(link, "aria-label"), "payments.") {
					continue
				}
				b.open(link)
				b.press("Count", "From", time.Now().UTC().Add(-time.Hour).Format("2006-01-02T15:04"))
				if strings.Contains(b.text(), "Nothing is missing") {
					b.follow("Go back")
					continue
				}
				b.says("3 messages?")
				b.press("Backfill 3")
				b.await("Done.")
				b.follow("Continue")
			}
		},
		solved: func(t *testing.T, s *shop) {
			s.await(loyalty, map[string]int{"processed": 4})
			s.await(mail, map[string]int{"processed": 4})
			require.Zero(t, s.status(ship, "o-1").RequeuedCount)
		},
	},
}

// awaitReason waits until a heartbeat has stored a health reason.
func (s *shop) awaitReason(code string) {
	s.t.Helper()
	inboxtest.Eventually(s.t, func() bool {
		var workers []models.Worker
		require.NoError(s.t, s.d.DB.Find(&workers, "health LIKE ?", "%"+code+"%").Error)
		return len(workers) > 0
	}, code)
}

// hangs starts an application in which the call of a handler for a message does not return, or only if its context is
// cancelled. Calls are reported as soon as they run.
func (s *shop) hangs(key, hanging string, obeys bool) {
	s.t.Helper()
	end := make(chan struct{})
	s.breaks(key, func(ctx context.Context, id string) error {
		if id != hanging {
			return nil
		}
		if !obeys {
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return nil
		}
	})
	s.start(version{options: []inbox.Option{inbox.Configure(func(o *inbox.Options) { o.LongRunning = time.Millisecond })}})
	s.t.Cleanup(func() { close(end) }) // before the application stops
	s.send(orders, "id", "o-1", "o-2", "o-3")
	s.await(key, map[string]int{"processed": 2, "open": 1})
	s.awaitReason("long_running")
}

// longRunning returns the health reason of a call that does not return.
func longRunning(c *terminal) reason {
	c.t.Helper()
	reasons := read[overview](c, "status").Reasons
	i := slices.IndexFunc(reasons, func(r reason) bool { return r.Code == "long_running" })
	require.GreaterOrEqual(c.t, i, 0)
	require.Contains(c.t, reasons[i].Detail, "has not returned")
	return reasons[i]
}

// openStuck opens the message whose call does not return, and returns the handler.
func openStuck(b *browser) (key string) {
	b.t.Helper()
	b.await("has not returned")
	link := b.linkIn(b.row("has not returned"), "")
	b.open(link) // the handler, with its claims
	b.open(b.linkIn(b.row(", PID"), "o-"))
	return textOf(link)
}

// at is the partition with its offset, as commands take it.
func (p partition) at() string {
	return p.Topic + "/" + strconv.Itoa(p.Partition) + "@" + strconv.Itoa(p.Position)
}
