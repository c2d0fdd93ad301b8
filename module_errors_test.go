package inbox_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/fx"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/fxtest"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/internal/inboxtest"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

// shipper is a handler whose constructor has a dependency.
type shipper struct{}

func (*shipper) Handle(context.Context, inboxtest.Bytes) error { return nil }

func newShipper(*http.Client) *shipper { return nil }

func newBrokenShipper() (*shipper, error) { return nil, errors.New("no licence to ship") }

// inFxWords begins Fx's own error. Fx says makeFuncStub of functions with fx.ParamTags.
const (
	inFxWords = `could not build arguments for function "reflect".makeFuncStub (`
	itsDB     = `failed to build inbox.moduleDB[name="inbox orders: provide a *gorm.DB with fx.ResultTags of name orders, or set option UnnamedDB"]: `
	itsShip   = `failed to build inbox.graphHandler[name="inbox orders, channel c, type t, handler ship"]: `
	// shipperIsMissing is the error's end.
	shipperIsMissing = "missing type: *inbox_test.shipper"
)

func TestGraphErrorsNameTheCause(t *testing.T) {
	db := fxtest.OpenDB(t)
	ship := inboxtest.Handlers(inbox.From[*shipper]("ship"))
	for name, tc := range map[string]struct {
		app   fx.Option
		begin string
		want  []string
	}{
		"a dependency of a handler is missing": {
			fx.Options(namedDB("orders", db), fx.Provide(newShipper), inbox.Module("orders", ship)), inFxWords,
			[]string{itsShip, `missing dependencies for function "github.com/gorm-inbox/inbox_test".newShipper`,
				"missing type: *http.Client"}},
		"a handler has no constructor": {
			fx.Options(namedDB("orders", db), inbox.Module("orders", ship)), inFxWords, []string{itsShip, shipperIsMissing}},
		"a handler's constructor fails": {
			fx.Options(namedDB("orders", db), fx.Provide(newBrokenShipper), inbox.Module("orders", ship)), inFxWords,
			[]string{itsShip, `received non-nil error from function "github.com/gorm-inbox/inbox_test".newBrokenShipper`,
				": no licence to ship"}},
		"a handler is nil": {
			fx.Options(namedDB("orders", db), fx.Supply(&http.Client{}), fx.Provide(newShipper), inbox.Module("orders", ship)),
			`inbox "orders": channel "c", type "t", handler "ship": the *inbox_test.shipper of the Fx graph is nil`, nil},
		"a named database is missing": {
			fx.Options(fx.Supply(db), inbox.Module("orders", inboxtest.Handlers(nothing("a")))),
			inFxWords, []string{itsDB, `missing type: *gorm.DB[name="orders"]`}},
		"the unnamed database is missing": {
			fx.Options(namedDB("orders", db), inbox.Module("", inboxtest.Handlers(nothing("a")))),
			inFxWords, []string{`inbox.moduleDB[name="inbox: fx.Provide an unnamed *gorm.DB"]`, `missing type: *gorm.DB`}},
		"a dependency of the database is missing": {
			fx.Options(fx.Provide(fx.Annotated{Name: "orders", Target: func(*http.Client) *gorm.DB { return db }}),
				inbox.Module("orders", inboxtest.Handlers(nothing("a")))),
			inFxWords, []string{itsDB, "module_errors_test.go", `failed to build *gorm.DB[name="orders"]`,
				"missing type: *http.Client"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := startError(tc.app)
			require.Error(t, err)
			require.True(t, strings.HasPrefix(err.Error(), tc.begin), err.Error())
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

func TestValidateAppFindsMissingModuleDependencies(t *testing.T) {
	database := func(*http.Client) *gorm.DB { return nil }
	orders := inbox.Module("orders", inboxtest.Handlers(inbox.From[*shipper]("ship")))
	client := fx.Supply(&http.Client{})
	for want, app := range map[string]fx.Option{
		`missing type: *gorm.DB[name="orders"]`: fx.Options(orders, fx.Provide(newShipper), client),
		itsDB:                                   fx.Options(orders, fx.Provide(newShipper), client),
		shipperIsMissing:                        fx.Options(orders, namedDB("orders", nil)),
		itsShip:                                 fx.Options(orders, namedDB("orders", nil)),
		"missing type: *http.Client":            fx.Options(orders, namedDB("orders", nil), fx.Provide(newShipper)),
		"missing type: *http.Client ": fx.Options(inbox.Module("", inboxtest.Handlers(nothing("a"))),
			fx.Provide(database)),
		`inbox "orders": it has no channels`: fx.Options(inbox.Module("orders"), namedDB("orders", nil)),
	} {
		require.ErrorContains(t, fx.ValidateApp(app, fx.NopLogger), strings.TrimSpace(want))
	}
	require.NoError(t, fx.ValidateApp(orders, namedDB("orders", nil), fx.Provide(newShipper), client, fx.NopLogger))
}

// Contract 10.4: Fx refuses what is declared twice without running anything, and names the inbox and the channel.
func TestDuplicateDeclarationsAcrossModulesAreRefused(t *testing.T) {
	handlers := func(keys ...string) inbox.Option {
		var specs []*inbox.HandlerSpec
		for _, key := range keys {
			specs = append(specs, nothing(key))
		}
		return inboxtest.Handlers(specs...)
	}
	module := func(name string, opts ...inbox.Option) fx.Option {
		return fx.Options(namedDB(name, nil), inbox.Module(name, opts...))
	}
	group := func(channel, key, broker string) inbox.Option {
		return inbox.Channel(channel, inbox.On("t", nothing(key)), inbox.Kafka(kafkaconsumer.Config{
			Brokers: []string{broker, "127.0.0.1:2"}, GroupID: "g", Topics: []string{"t1"}}))
	}
	for name, tc := range map[string]struct {
		first, second fx.Option
		want, by      string
	}{
		"module": {inbox.Module("orders", handlers("a")), inbox.Module("orders", handlers("b")),
			`inbox.moduleName[name="orders"]`, `fx.Annotated{Name: "orders", Target: github.com/gorm-inbox/inbox.giveEachModuleItsOwnName()}`},
		"module without a name": {module("", handlers("a")), inbox.Module("", handlers("b")), `inbox.moduleName`,
			"fx.Provide(fx.Annotated{Target: github.com/gorm-inbox/inbox.giveEachModuleItsOwnName()}) from:"},
		"handler key": {module("orders", handlers("a", "b")), module("billing", handlers("c", "b")),
			`inbox.handlerKey[name="b"]`, "inbox billing, channel c"},
		"legacy key": {module("orders", inboxtest.Handlers(nothing("a", handler.LegacyKeys("old \"a`, 1")))),
			module("billing", handlers("old \"a`, 1")), `inbox.handlerKey[name="old \"a` + "`" + `, 1"]`,
			"inbox billing, channel c"},
		"key of a feature": {module("orders", handlers("a")),
			inbox.Extend("orders", inbox.Subscribe("c", "u", nothing("a"))), `inbox.handlerKey[name="a"]`, "inbox orders, channel c"},
		"keys of two features": {fx.Options(module("orders", handlers("a")),
			inbox.Extend("orders", inbox.Channel("new", inbox.On("t", nothing("b"))))),
			inbox.Extend("orders", inbox.Subscribe("c", "u", nothing("b"))), `inbox.handlerKey[name="b"]`, "inbox orders, channel c"},
		"consumer group": {module("orders", group("one", "a", "127.0.0.1:1")),
			module("billing", group("two", "b", "127.0.0.1:3")), `inbox.consumerGroup[name="g@127.0.0.1:2"]`,
			"inbox billing, channel two"},
		"channel": {module("orders", handlers("a")), inbox.Extend("orders", handlers("b")),
			`inbox.declaredChannel[name="inbox orders, channel c"]`, "inbox orders, channel c"},
	} {
		t.Run(name, func(t *testing.T) {
			both := fx.Options(tc.first, tc.second)
			for _, err := range []error{fx.ValidateApp(both, fx.NopLogger), startError(both)} {
				require.Error(t, err)
				place, words, _ := strings.Cut(err.Error(), "Failed: ")
				require.Contains(t, words, "cannot provide "+tc.want+" from ")
				require.Contains(t, place, tc.by)
				require.Contains(t, place, "module_errors_test.go", "the second declaration")
			}
		})
	}
}

func TestAllInboxErrorsAreReportedTogether(t *testing.T) {
	declaration := []inbox.Option{
		inbox.Configure(func(o *inbox.Options) {
			o.Processor.BatchSize = 0
			o.Acceptor.Unrouted = "keep"
			o.Acceptor.OnGap = "skip"
			o.Schema = "a b"
			o.TablePrefix = "a-b"
			o.Middleware = append(o.Middleware, nil)
		}),
		inbox.Channel("empty"),
		inbox.Channel("twice", inbox.On("t", nothing("a", handler.Timeout(-1)), nothing("a"), nil)),
		inbox.Channel("events", inbox.On("t", nothing("b")), inbox.Kafka(kafkaconsumer.Config{DeadLetterTopic: "t",
			BatchRecords: -1, SASL: kafkaconsumer.SASL{Mechanism: "x", Username: "u"}})),
		inbox.Channel("direct", inbox.Direct(), inbox.On("t", nothing("c", handler.Ordered()))),
		inbox.Channel("inline", inbox.Inline(inbox.InlineHandler("nobody", nil),
			inbox.InlineDefaults(idempotent.Configure(func(o *idempotent.Options) {
				o.Retention = -1
				o.Duplicates = "x"
			}))), inbox.Kafka(unreachableKafka),
			inbox.On("t", nothing("d"))),
	}
	wants := []string{
		"option Middleware: a middleware is nil", "option BatchSize = 0", `option Unrouted = "keep"`,
		`option OnGap = "skip"`,
		`option Schema = "a b": must be`,
		`option TablePrefix = "a-b": must be`, `channel "empty" has no handlers`,
		`channel "twice", type "t": a handler is nil`, `handler key "a" is registered twice`,
		`channel "twice", type "t", handler "a": option Timeout = -1ns`, `channel "events": option Brokers is empty`,
		`channel "events": option Topics is empty`,
		`channel "events": option GroupID = ""`, `channel "events": option SASL`,
		`channel "events": option BatchRecords = -1`, `channel "events": option DeadLetterTopic = "t"`,
		`channel "direct" is in Direct mode and has no transport`,
		`channel "direct", type "t", handler "c": Ordered is not supported in Direct mode`,
		`channel "inline": inbox.InlineHandler: the channel has no handler "nobody"`,
	}
	for name, tc := range map[string]struct {
		err   error
		wants []string
	}{
		"New": {func() error {
			_, err := inbox.New("orders", fxtest.OpenDB(t), declaration...)
			return err
		}(), append(wants, `channel "inline": idempotent handler "d": option Retention = -1ns`,
			`channel "inline": idempotent handler "d": option Duplicates = "x"`)},
		"Module":      {startError(inbox.Module("orders", declaration...)), wants},
		"ValidateApp": {fx.ValidateApp(inbox.Module("orders", declaration...)), wants},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, tc.err)
			lines := strings.Split(tc.err.Error(), "\n")
			for _, line := range lines {
				require.True(t, strings.HasPrefix(line, `inbox "orders": `), line)
			}
			for _, want := range tc.wants {
				require.Equal(t, 1, strings.Count(tc.err.Error(), `inbox "orders": `+want), "%s\nof\n%s", want, tc.err)
			}
			require.Len(t, lines, len(tc.wants), tc.err.Error())
		})
	}
}
