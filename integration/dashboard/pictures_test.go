package dashboard

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/models"
	"github.com/gorm-inbox/inbox/ops"
)

// update is set to take the documentation's pictures again: go test -C integration ./dashboard -run Pictures -update
var update = flag.Bool("update", false, "take the pictures in docs/images again, and rewrite the texts beside them")

const (
	images = "../../docs/images"
	// pictureWidth is the width of each picture, in pixels.
	pictureWidth = 1180
	// maxPicture bounds a picture's file, because the README loads it.
	maxPicture = 120 << 10
)

// docPicture is a picture that the documentation shows of a page of the dashboard.
type docPicture struct {
	name, address, theme string
	height               int
}

var docPictures = []docPicture{
	{"dashboard-overview", "", "light", 900},
	{"dashboard-failures", "failures", "dark", 640},
	{"dashboard-message", "message?id=order-2026-00319", "light", 860},
	{"dashboard-consumers", "consumers", "light", 840},
}

// TestPicturesShowTheCurrentPages compares what each picture was taken of, which the text beside it says, with the page
// as it is now. Pixels are not compared: they depend on the machine's fonts.
func TestPicturesShowTheCurrentPages(t *testing.T) {
	w := newWorld(t)
	w.businessHour()
	style := w.get("dashboard.css")
	for _, picture := range docPictures {
		page := w.get(picture.address)
		current := describe(t, page, style)
		described, taken := filepath.Join(images, picture.name+".txt"), filepath.Join(images, picture.name+".png")
		if *update {
			require.NoError(t, os.WriteFile(taken, picture.take(t, w), 0o644))
			require.NoError(t, os.WriteFile(described, []byte(current), 0o644))
		}
		then, err := os.ReadFile(described)
		require.NoError(t, err)
		require.Equal(t, string(then), current,
			"%s shows an old page; go test -C integration ./dashboard -run Pictures -update takes it again", taken)
		content, err := os.ReadFile(taken)
		require.NoError(t, err)
		require.LessOrEqual(t, len(content), maxPicture, taken)
		size, err := png.DecodeConfig(bytes.NewReader(content))
		require.NoError(t, err, taken)
		require.Equal(t, []int{pictureWidth, picture.height}, []int{size.Width, size.Height}, taken)
	}
}

// get returns a page or another file of the dashboard.
func (w *world) get(address string) []byte {
	w.t.Helper()
	response, err := http.Get(w.site + address)
	require.NoError(w.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	require.Equal(w.t, http.StatusOK, response.StatusCode, "%s: %s", address, body)
	return body
}

// random matches what a page has anew each time: the form's token and the IDs of statuses.
var random = regexp.MustCompile(`(name="token" value=")[^"]*|[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)

// describe returns a page's text and a digest of its markup and style. The text tells readers of a diff what changed,
// and the digest also changes with what is no text.
func describe(t *testing.T, page, style []byte) string {
	t.Helper()
	page = random.ReplaceAll(page, []byte("$1"))
	document, err := html.Parse(bytes.NewReader(page))
	require.NoError(t, err)
	var text strings.Builder
	write(&text, document)
	var lines []string
	for line := range strings.Lines(text.String()) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return fmt.Sprintf("%s\n\nmarkup and style: %x\n", strings.Join(lines, "\n"), sha256.Sum256(slices.Concat(page, style)))
}

// inLine are elements that continue a line.
var inLine = []string{"a", "b", "bdi", "code", "dd", "small", "span", "strong", "td", "th", "time"}

// write writes the text below a node, each block on a line of its own.
func write(text *strings.Builder, node *html.Node) {
	if node.Type == html.TextNode {
		text.WriteString(node.Data)
	}
	if node.Type == html.ElementNode {
		if node.Data == "head" || node.Data == "script" {
			return
		}
		separator := "\n"
		if slices.Contains(inLine, node.Data) {
			separator = " "
		}
		text.WriteString(separator)
		defer text.WriteString(separator)
	}
	for child := range node.ChildNodes() {
		write(text, child)
	}
}

// take takes the picture of the page's top, in few enough colours for a palette, which makes its file small.
func (p docPicture) take(t *testing.T, w *world) []byte {
	t.Helper()
	b := open(t)
	b.prefer(p.theme)
	b.run(chromedp.EmulateViewport(pictureWidth, int64(p.height)))
	b.visit(w.site + p.address)
	var taken []byte
	b.run(chromedp.CaptureScreenshot(&taken))
	full, err := png.Decode(bytes.NewReader(taken))
	require.NoError(t, err)
	reduced := image.NewPaletted(full.Bounds(), palette(full))
	draw.Draw(reduced, full.Bounds(), full, full.Bounds().Min, draw.Src)
	var out bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, reduced))
	return out.Bytes()
}

// palette returns at most 256 colours of a picture: the most frequent ones, without those that are nearly the same as a
// more frequent one. So flat areas keep their colour exactly, and what is small keeps one that is close.
func palette(picture image.Image) color.Palette {
	counts := map[color.RGBA]int{}
	bounds := picture.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)]++
		}
	}
	colours := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int { return cmp.Compare(counts[b], counts[a]) })
	for nearly := 0; ; nearly += 4 {
		var chosen color.Palette
		for _, c := range colours {
			if len(chosen) <= 256 && !slices.ContainsFunc(chosen, func(other color.Color) bool {
				return distance(c, other.(color.RGBA)) < nearly
			}) {
				chosen = append(chosen, c)
			}
		}
		if len(chosen) <= 256 {
			return chosen
		}
	}
}

func distance(a, b color.RGBA) int {
	abs := func(x, y uint8) int { return int(max(x, y) - min(x, y)) }
	return abs(a.R, b.R) + abs(a.G, b.G) + abs(a.B, b.B)
}

// businessHour fills the inbox with an hour of a shop in which a few things go wrong: the template of a mail lacks a
// value, a fiscal period is closed, an address is too long and blocks its customer's lane, records are rejected, one
// halts its partition, and a handler of an Inline channel fails.
func (w *world) businessHour() {
	w.t.Helper()
	w.report()
	order, payment := 300, 7100
	for i := range 180 {
		w.clock.Advance(20 * time.Second)
		if i%3 == 0 {
			order++
			id := fmt.Sprintf("order-2026-%05d", order)
			if i > 45 && i%9 == 0 {
				w.fail(mail, handler.Poison(fmt.Errorf("render order-placed.tmpl for order %d: no value for delivery_date", order)), id)
			}
			w.accept("order.placed", nil, id)
		}
		if i%5 == 0 {
			payment++
			id := fmt.Sprintf("payment-%d", payment)
			switch {
			case i >= 165:
				w.fail(invoice, errors.New("post invoice: dial tcp 10.0.4.17:8443: connect: connection refused"), id)
			case i >= 130:
				w.fail(invoice, handler.Poison(fmt.Errorf("post invoice: ERP answered 409: fiscal period 2026-%02d is closed", i/14)), id)
			}
			w.accept("order.paid", nil, id)
		}
		switch i {
		case 100:
			w.fail(ship, handler.Poison(errors.New("warehouse: address line 2 is longer than 35 characters")), "order-2026-00901")
			for _, id := range ids("order-2026-0090%d", 3) {
				w.accept("order.placed", func(m *handler.RawMessage) { m.OrderingKey = []byte("customer-7") }, id)
			}
		case 110:
			w.reject(5510, "no ID: the record has no header ce_id and no key")
		case 140:
			w.reject(5632, "the value is not JSON: invalid character 'N' looking for beginning of value")
			failed := w.status(mail, "order-2026-00319")
			require.True(w.t, failed.IsPoisoned)
			require.NoError(w.t, w.ops.Retry(w.t.Context(), "grace@example.org", ops.Ref{StatusID: failed.ID}))
		case 168:
			require.NoError(w.t, w.ops.Pause(w.t.Context(), "grace@example.org", search))
		}
		if i%4 != 0 { // so that something is pending at times
			w.process()
		}
		w.beat()
		w.get("")
	}
	require.NoError(w.t, w.db.Create(&models.Gap{ID: uuid.NewString(), Channel: "shop", Topic: "shop.orders", Partition: 1,
		FromOffset: 10233, ToOffset: 10871, Reason: "records were removed by retention before they were read",
		FoundAt: w.clock.Now().Add(-26 * time.Hour)}).Error)
	w.clock.Advance(11 * time.Second) // the navigation keeps its counts for ten
	w.beat()
}

// capture is the handler of the Inline channel "payments".
const capture = "payments.capture"

// report stores the rows of two workers, with what their consumers and their health were at the hour's end.
func (w *world) report() {
	w.t.Helper()
	began := w.clock.Now()
	at := func(minute int) time.Time { return began.Add(time.Duration(minute) * time.Minute) }
	const unrouted = "message \"order-2026-00342\" is invalid: unrouted: there is no handler for the type order.cancelled"
	const declined = "failed 4 times with message \"capture-5121\", next in 14s: capture payment: gateway answered 503"
	text := func(v any) string {
		encoded, err := json.Marshal(v)
		require.NoError(w.t, err)
		return string(encoded)
	}
	keys := text(map[string]string{mail: "shop", ship: "shop", invoice: "shop", search: "shop", capture: "payments"})
	fetching := func(topic string, partition int32, offset, lag int64) ops.ConsumedPartition {
		return ops.ConsumedPartition{Topic: topic, Partition: partition, State: "fetching", Position: offset, Committed: offset,
			Lag: lag}
	}
	workers := []models.Worker{
		{Host: "shop-7c9d8-x2x4q", Consumers: text([]ops.Consumer{
			{Channel: "shop", GroupID: "fulfilment", State: "running", Since: at(-180), Lag: 19, Unrouted: 1,
				Partitions: []ops.ConsumedPartition{{Topic: "shop.orders", Partition: 2, State: "halted", Position: 10412,
					Committed: 10412, Lag: 17, Problem: unrouted, Since: at(42), Halted: true, Skippable: true},
					fetching("shop.orders", 0, 15002, 0), fetching("shop.orders", 1, 14877, 2)}}}),
			Health: text([]ops.HealthReason{{Code: "halted_partition", State: "unhealthy", Channel: "shop",
				Detail: "shop.orders/2 is halted before offset 10412 since 2026-01-01T12:42:00Z: " + unrouted}})},
		{Host: "shop-7c9d8-9kk2p", Consumers: text([]ops.Consumer{
			{Channel: "payments", GroupID: "fulfilment", State: "running", Since: at(-180), Lag: 6,
				Partitions: []ops.ConsumedPartition{{Topic: "shop.payments", Partition: 1, State: "accepting", Position: 5121,
					Committed: 5121, Lag: 6, Problem: capture + " " + declined, Since: at(59)},
					fetching("shop.payments", 0, 5090, 0)}}}),
			Health: text([]ops.HealthReason{{Code: "failing_handler", State: "degraded", Channel: "payments", HandlerKey: capture,
				Detail: "shop.payments/1: " + declined}})},
	}
	for i, worker := range workers {
		worker.ID, worker.PID, worker.HandlerKeys = fmt.Sprintf("0190c1a2-0000-7000-8000-%012d", i), 1, keys
		worker.StartedAt, worker.HeartbeatAt = at(-180), began
		require.NoError(w.t, w.db.Create(&worker).Error)
	}
	caughtUp := at(42)
	require.NoError(w.t, w.db.Create([]models.Partition{
		{Channel: "shop", GroupID: "fulfilment", Topic: "shop.orders", CaughtUpAt: &caughtUp, DeclaredAt: at(60), CountedAt: at(60)},
		{Channel: "payments", GroupID: "fulfilment", Topic: "shop.payments", CaughtUpAt: &caughtUp, DeclaredAt: at(60),
			CountedAt: at(60)}}).Error)
}
