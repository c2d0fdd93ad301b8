package dashboard_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// TestTopicIsReadAgainAfterACount proves contract 7.11 and 11.4: a period is counted first, reading is followed,
// stopped by those who may start it, and continued with what is left.
func TestTopicIsReadAgainAfterACount(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := newRig(t, d, nil)
		left := []envelope.Range{{Partition: 1, From: 2, To: 5, Log: "log"}}
		asked := make(chan envelope.ReadAgain, 10)
		var err error
		r.ops, err = r.ib.Ops(func(o *ops.Options) {
			o.Live = inboxtest.Reading{Live: o.Live, Read: func(
				ctx context.Context, q envelope.ReadAgain,
			) (envelope.ReadAgainResult, error) {
				asked <- q
				switch {
				case q.DryRun:
					return envelope.ReadAgainResult{Read: 5, Accepted: 4,
						ByType: map[string]envelope.TypeCounts{"<order>": {Accepted: 4}}, Gaps: []envelope.Gap{{Topic: "orders", Partition: 1, From: -1,
							To: 7, Reason: "records before were deleted"}}, Unconsumed: []envelope.Range{{Partition: 2, From: 11, To: 12}}}, nil
				case len(q.Ranges) > 0:
					return envelope.ReadAgainResult{Read: 3, Left: nil}, nil
				case q.Topic == "broken":
					return envelope.ReadAgainResult{Read: 1, Left: left}, errors.New("the broker is away")
				}
				q.Progress(envelope.ReadAgainResult{Read: 2, Accepted: 1, Left: left})
				<-ctx.Done()
				return envelope.ReadAgainResult{Read: 2, Accepted: 1, Left: left}, ctx.Err()
			}}
		})
		require.NoError(t, err)
		r.serve(func(o *dashboard.Options) {
			o.Authorizer = r.authorize
			o.Clock = r.clock
		})
		now := r.clock.Now()
		require.NoError(t, inboxtest.Store(t, d.DB).RecordProgress(t.Context(), []models.Partition{{Channel: "c",
			GroupID: "g", Topic: "orders", CaughtUpAt: &now}}, nil, now))
		const address = "read-again?channel=c&topic=orders"
		require.NotContains(t, r.as(dashboard.Operator).page("consumers"), "./read-again")
		require.Contains(t, r.as(dashboard.Admin).page("consumers"), `href="./read-again?channel=c&amp;topic=orders"`)
		require.Contains(t, r.page(address), `type="datetime-local" name="from"`)
		require.Empty(t, r.audit(), "asking does nothing")

		start := func(address string, fields url.Values) (job string) {
			started := r.post(address, fields)
			require.Equal(t, http.StatusSeeOther, started.Status, headingOf(started.Body))
			return strings.TrimPrefix(started.Header.Get("Location"), "./job?id=")
		}
		await := func(job, text string) string {
			inboxtest.Eventually(t, func() bool { return strings.Contains(r.page("job?id="+job), text) }, text)
			return r.page("job?id=" + job)
		}
		from := time.Date(2026, 1, 1, 11, 0, 0, 0, time.UTC)
		page := await(start(address, url.Values{"from": {"2026-01-01T11:00"}, "dry": {"yes"}}), "Done.")
		require.Contains(t, page, `<dt>Would be accepted</dt><dd class="figure">4</dd>`)
		require.Contains(t, page, `&lt;order&gt;</th><td class="number" data-label="Accepted">4</td>`)
		require.Contains(t, page, `orders/1</span> before offset 7</dt><dd>records before were deleted</dd>`)
		require.Contains(t, page, `<dt>Partition 2</dt><dd>from offset 11, where the consumer goes on</dd>`)
		require.Contains(t, page, `href="./read-again?channel=c&amp;from=2026-01-01T11%3A00&amp;topic=orders"`)
		require.Contains(t, r.page(address+"&from=2026-01-01T11:00"), `value="2026-01-01T11:00"`)
		q := <-asked
		require.Equal(t, []any{"c", "orders", true}, []any{q.Channel, q.Topic, q.DryRun})
		require.True(t, from.Equal(q.From))

		job := start(address, url.Values{"from": {"2026-01-01T11:00"}, "to": {"2026-01-01T11:30"}})
		await(job, `<dt>Accepted</dt><dd class="figure">1</dd>`)
		q = <-asked
		require.True(t, from.Add(30*time.Minute).Equal(q.To))
		require.Equal(t, http.StatusForbidden, r.as(dashboard.Operator).post("job-stop", url.Values{"id": {job}}).Status)
		r.as(dashboard.Admin).follow(r.post("job-stop", url.Values{"id": {job}}))
		require.Contains(t, await(job, "Stopped early"), "Read the rest")
		rest := start("read-again", url.Values{"after": {job}})
		require.NotContains(t, await(rest, "Done."), "Read the rest")
		q = <-asked
		require.Equal(t, left, q.Ranges)
		require.Equal(t, []any{"c", "orders", true, true}, []any{q.Channel, q.Topic, q.From.IsZero(), q.To.IsZero()})
		require.Equal(t, http.StatusNotFound, r.post("read-again", url.Values{"after": {rest}}).Status)

		broken := start("read-again?channel=c&topic=broken", url.Values{"from": {"2026-01-01T11:00"}})
		page = await(broken, "Reading ended early")
		require.Contains(t, page, "Read the rest")
		require.NotContains(t, page, "the broker is away", "it is in the audit")
		require.Contains(t, r.page("audit?action=read_again"), "the broker is away")
		require.Contains(t, r.audit(), "admin@example.org read_again topic orders of channel c")

		require.Equal(t, http.StatusBadRequest, r.post(address, url.Values{"dry": {"yes"}}).Status, "since when")
		require.Equal(t, http.StatusBadRequest, r.post(address, url.Values{"from": {"soon"}}).Status)
		require.Equal(t, http.StatusBadRequest, r.post("read-again", url.Values{"from": {"2026-01-01T11:00"}}).Status)
	})
}
