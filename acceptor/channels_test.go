package acceptor_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/acceptor"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/models"
)

// handled records what came to each handler.
type handled struct {
	mu sync.Mutex
	by map[string][]string
}

func (h *handled) note(key string, opts ...handler.Option) *inbox.HandlerSpec {
	return inboxtest.Do(key, func(_ context.Context, m inboxtest.Bytes) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.by == nil {
			h.by = map[string][]string{}
		}
		h.by[key] = append(h.by[key], m.Properties.Channel+": "+string(m.Payload))
		return nil
	}, opts...)
}

// from returns a message that came on a channel.
func from(channel, content string) handler.RawMessage {
	return handler.RawMessage{Channel: channel, Type: "t", Source: "/bank", ID: "payment-1", Content: []byte(content)}
}

func acceptAll(t *testing.T, ib *inbox.Inbox, messages ...handler.RawMessage) (outcomes []handler.AcceptOutcome) {
	t.Helper()
	results, err := ib.Accept(t.Context(), messages...)
	require.NoError(t, err)
	for _, r := range results {
		outcomes = append(outcomes, r.Outcome)
	}
	return outcomes
}

// TestMessageNeverRunsHandlersOfAnotherChannel proves contract 4.2, 4.4: a party that may write
// to one channel's topic cannot reach another channel's handlers, whatever ID it chooses.
func TestMessageNeverRunsHandlersOfAnotherChannel(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var ran handled
		ib := inboxtest.New(t, d.DB,
			inbox.Channel("partners", inbox.On("t", ran.note("import"))),
			inbox.Channel("core", inbox.On("t", ran.note("transfer"))))
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeAccepted}, acceptAll(t, ib, from("partners", "forged")))
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeAccepted, handler.OutcomeDuplicate},
			acceptAll(t, ib, from("core", "genuine"), from("partners", "forged")), "another's message is no duplicate")
		inboxtest.Process(t, ib)
		require.Equal(t, map[string][]string{"import": {"partners: forged"}, "transfer": {"core: genuine"}}, ran.by)
		require.Equal(t, 2, inboxtest.CountMessages(t, ib))
		require.Zero(t, ib.Counters().DuplicateContentDiffers)
	})
}

// TestRenamedHandlerRunsMessagesOfBothChannels proves that a renamed handler's other row
// is looked up by the same message and not by the same ID.
func TestRenamedHandlerRunsMessagesOfBothChannels(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var ran handled
		old := inboxtest.New(t, d.DB, inbox.Channel("a", inbox.On("t", ran.note("old"))))
		acceptAll(t, old, from("a", "of a"))
		ib := inboxtest.New(t, d.Another(t), inbox.Channel("b", inbox.On("t", ran.note("new", handler.LegacyKeys("old")))))
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeAccepted}, acceptAll(t, ib, from("b", "of b")))
		inboxtest.Process(t, ib)
		require.ElementsMatch(t, []string{"a: of a", "b: of b"}, ran.by["new"], "neither is superseded by the other's row")
	})
}

func TestChannelsOfOneNamespaceShareIDs(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		var ran handled
		ib := inboxtest.New(t, d.DB,
			inbox.Channel("eu", inbox.IDNamespace("payments"), inbox.On("t", ran.note("book"))),
			inbox.Channel("us", inbox.IDNamespace("payments"), inbox.On("t", ran.note("report"))))
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeAccepted, handler.OutcomeDuplicate},
			acceptAll(t, ib, from("eu", "first"), from("us", "second")))
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeDuplicate}, acceptAll(t, ib, from("us", "third")))
		inboxtest.Process(t, ib)
		require.Equal(t, map[string][]string{"book": {"eu: first"}, "report": {"eu: first"}}, ran.by,
			"what came first is what all of them run")
		var stored models.Message
		require.NoError(t, d.DB.Take(&stored).Error)
		require.Equal(t, "payments", stored.Namespace)
	})
}

// TestRenamedChannelFindsMessagesByOldNamespace proves docs/handlers.md: under its old name,
// the channel's messages are still known.
func TestRenamedChannelFindsMessagesByOldNamespace(t *testing.T) {
	inboxtest.OnEach(t, func(t *testing.T, d *inboxtest.Database) {
		var ran handled
		old := inboxtest.New(t, d.DB, inbox.Channel("core", inbox.On("t", ran.note("transfer"))))
		acceptAll(t, old, from("core", "once"))
		inboxtest.Process(t, old)
		ib := inboxtest.New(t, d.Another(t), inbox.Channel("core.payments", inbox.IDNamespace("core"),
			inbox.On("t", ran.note("transfer"))))
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeDuplicate}, acceptAll(t, ib, from("core.payments", "once")))
		inboxtest.Process(t, ib)
		require.Equal(t, []string{"core: once"}, ran.by["transfer"])
	})
}

func TestEveryChannelMustDeclareSharedIDs(t *testing.T) {
	d := inboxtest.Do("h", inboxtest.Nothing)
	for _, c := range []struct {
		options []inbox.ChannelOption
		problem string
	}{
		{[]inbox.ChannelOption{inbox.IDNamespace("core")},
			`channel "b" shares the IDs of channel "core", which does not say so: give both inbox.IDNamespace("core")`},
		{[]inbox.ChannelOption{inbox.IDNamespace("core"), inbox.Direct()},
			`channel "b" is in Direct mode, where inbox.IDNamespace has nothing to share`},
		{[]inbox.ChannelOption{inbox.IDNamespace("a"), inbox.Inline()},
			`channel "b" is in Inline mode and has namespace "a" in common with channel "a"`},
		{[]inbox.ChannelOption{inbox.IDNamespace("moved")},
			`channel "b": inbox.IDNamespace is the name of channel "moved", whose IDs are in namespace "elsewhere": give another`},
		{[]inbox.ChannelOption{inbox.IDNamespace("x"), inbox.IDNamespace("x")}, `channel "b" has inbox.IDNamespace twice`},
		{[]inbox.ChannelOption{inbox.IDNamespace("")}, `channel "b": inbox.IDNamespace "" is not 1 to 200 characters`},
		{[]inbox.ChannelOption{inbox.IDNamespace("a\x00")}, `is not 1 to 200 characters of valid UTF-8 without NUL`},
	} {
		_, err := inbox.New("test", nil, inbox.Channel("core", inbox.On("t", d)),
			inbox.Channel("a", inbox.IDNamespace("a")), inbox.Channel("moved", inbox.IDNamespace("elsewhere")),
			inbox.Channel("b", append(c.options, inbox.On("t", d))...))
		require.ErrorContains(t, err, c.problem)
	}
	// The channel's name is stored with every message, so no accept could succeed.
	_, err := inbox.New("test", nil, inbox.Channel("a\x00", inbox.On("t", d)))
	require.ErrorContains(t, err, "the name is not 1 to 200 characters of valid UTF-8 without NUL")
}

// TestDifferentContentUnderKnownIDIsLogged proves contract 4.3.
func TestDifferentContentUnderKnownIDIsLogged(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, log, inboxtest.Handlers(nothing("a")))
		acceptAll(t, ib, handler.RawMessage{Channel: "c", Type: "t", ID: "1", Content: []byte("10 EUR")})
		require.Equal(t, []handler.AcceptOutcome{handler.OutcomeDuplicate},
			acceptAll(t, ib, handler.RawMessage{Channel: "c", Type: "t", ID: "1", Content: []byte("1000 EUR")}))
		logged := logs.FilterMessage("inbox: message IDs are known with other content, the content stored first counts").FilterField(zap.Strings("message_ids", []string{"1"}))
		require.Len(t, logged.All(), 1)
		require.NotContains(t, logged.All()[0].ContextMap(), "content")
		require.EqualValues(t, 1, ib.Counters().DuplicateContentDiffers)
		other := handler.RawMessage{Channel: "c", Type: "t", ID: "1", Content: []byte("1000 EUR")}
		acceptAll(t, ib, other, other)
		require.EqualValues(t, 3, ib.Counters().DuplicateContentDiffers, "each of those that come together")
	})
}

// TestAcceptTxRefusesDifferentContentUnderKnownID proves that an outbox's relay is notified
// too.
func TestAcceptTxRefusesDifferentContentUnderKnownID(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		log, logs := inboxtest.Observe()
		ib := inboxtest.New(t, d.DB, log, inbox.Configure(func(o *inbox.Options) {
			o.Acceptor.DifferingContent = acceptor.DifferingContentReject
		}),
			inboxtest.Handlers(nothing("a")))
		inboxtest.Accept(t, ib, "1")
		err := d.DB.Transaction(func(tx *gorm.DB) error {
			_, err := ib.AcceptTx(t.Context(), tx, handler.RawMessage{Channel: "c", Type: "t", ID: "1",
				Content: []byte("other")})
			return err
		})
		require.ErrorContains(t, err, "content_differs")
		require.Len(t, logs.FilterMessageSnippet("known with other content").All(), 1)
		require.EqualValues(t, 1, ib.Counters().DuplicateContentDiffers)
	})
}

func TestPolicyRejectsDifferentContentUnderKnownID(t *testing.T) {
	inboxtest.OnAny(t, func(t *testing.T, d *inboxtest.Database) {
		r := receive(t, d, func(o *acceptor.Options) { o.DifferingContent = acceptor.DifferingContentReject })
		other := func(offset int64) envelope.Received {
			record := at(offset, "1")
			record.Messages[0].Content = []byte("other")
			return record
		}
		results := r.accept(at(0, "1"), other(1), at(2, "1"))
		require.Equal(t, 1, results[0].Accepted)
		require.ErrorContains(t, results[1].Err, "content_differs")
		require.Equal(t, 1, results[2].Duplicates, "the same content is a duplicate")
		require.ErrorContains(t, r.accept(other(3))[0].Err, "content_differs")
		for i, row := range r.rejected() {
			require.EqualValues(t, 2*i+1, row.Offset)
			require.Contains(t, row.Reason, `"1"`)
			require.Contains(t, row.Reason, "known with other content")
		}
		require.Len(t, r.rejected(), 2)
		require.Equal(t, []string{"1"}, r.messages())
	})
}
