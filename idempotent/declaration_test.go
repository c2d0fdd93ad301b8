package idempotent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/idempotent"
	"github.com/gorm-inbox/inbox/idempotent/memstore"
)

func wrapping[T any](t *testing.T, key string, fn func(context.Context, T) error, opts ...idempotent.Option) error {
	h, err := idempotent.Wrap(memory(t), key, fn, opts...)
	require.Equal(t, err == nil, h != nil)
	return err
}

func TestDeclarationErrorsNameTheProblem(t *testing.T) {
	defaults := idempotent.DefaultOptions()
	bad := idempotent.Options{Retention: -time.Second, Duplicates: "twice"}
	for _, c := range []struct {
		name string
		err  error
		want []string // all of them
	}{
		{"all is well", wrapping(t, "billing", nothing[message], nil,
			idempotent.Configure(func(o *idempotent.Options) { *o = defaults })), nil},
		{"empty key", wrapping(t, "", nothing[message]), []string{`idempotent handler ""`, "handler key is empty"}},
		{"long key", wrapping(t, strings.Repeat("é", 201), nothing[message]),
			[]string{"handler key of 201 characters: must be 1 to 200"}},
		{"key that is no text", wrapping(t, "a\xff", nothing[message]), []string{"not valid UTF-8 without NUL"}},
		{"key with NUL", wrapping(t, "a\x00", nothing[message]), []string{"not valid UTF-8 without NUL"}},
		{"nil function", wrapping[message](t, "billing", nil),
			[]string{`idempotent handler "billing"`, "its function is nil"}},
		{"zero options", wrapping(t, "billing", nothing[message], idempotent.Configure(func(o *idempotent.Options) {
			*o = idempotent.Options{}
		})),
			[]string{"start from idempotent.DefaultOptions()"}},
		{"options", wrapping(t, "billing", nothing[message], idempotent.Configure(func(o *idempotent.Options) { *o = bad })),
			[]string{"option Retention = -1s: must be 0 (the store's) or more",
				`option Duplicates = "twice": must be skip, log or fail`}},
		{"the store's retention", wrapping(t, "billing", nothing[message],
			idempotent.Configure(func(o *idempotent.Options) { o.Retention = 0 })), nil},
		{"nowhere to log", wrapping(t, "billing", nothing[message], idempotent.Configure(func(o *idempotent.Options) {
			o.Duplicates = idempotent.LogDuplicates
		})),
			[]string{`option Duplicates is "log", but there is no logger: set option Logger`}},
		{"nil to log to", wrapping(t, "billing", nothing[message], idempotent.Configure(func(o *idempotent.Options) {
			o.Duplicates = idempotent.LogDuplicates
			o.Logger = nil
		})), []string{"there is no logger"}},
		{"payload without ID", wrapping(t, "billing", nothing[order]),
			[]string{"idempotent_test.order, which has no ID: use KeyBy"}},
		{"payload without headers", wrapping(t, "billing", nothing[order], idempotent.IDFrom(envelope.HeaderID())),
			[]string{"finds nothing in a idempotent_test.order"}},
		{"selector of another type", wrapping(t, "billing", nothing[order], idempotent.KeyBy(func(string) (string,
			error) {
			return "", nil
		})), []string{"option KeyBy is a func(string) (string, error) or nil: must be a func(idempotent_test.order) (string, error)"}},
		{"nil selector", wrapping(t, "billing", nothing[order], idempotent.KeyBy[order](nil)),
			[]string{"option KeyBy", "or nil"}},
		{"record of another type", wrapping(t, "billing", nothing[order], idempotent.RecordBy(func(string) envelope.Record {
			return envelope.Record{}
		})), []string{"option RecordBy is a func(string)"}},
		{"nil record", wrapping(t, "billing", nothing[order], idempotent.RecordBy[order](nil)),
			[]string{"option RecordBy", "or nil"}},
		{"function of a record that is not there", wrapping(t, "billing", nothing[message],
			idempotent.IDFrom(envelope.Func(func(envelope.IDInput) (string, error) { return "", nil }))),
			[]string{"ID strategy function, which needs a record"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want == nil {
				require.NoError(t, c.err)
			}
			for _, part := range c.want {
				require.ErrorContains(t, c.err, part)
			}
		})
	}
}

func TestStoreMayBeRequired(t *testing.T) {
	_, err := idempotent.New(nil, idempotent.Configure(func(o *idempotent.Options) { o.RequireStore = true }))
	require.ErrorIs(t, err, idempotent.ErrNoStore)
	_, err = idempotent.Wrap(nil, "billing", nothing[message], idempotent.Configure(func(o *idempotent.Options) {
		o.RequireStore = true
	}))
	require.ErrorIs(t, err, idempotent.ErrNoStore)
	require.ErrorContains(t, err, `"billing"`)
	_, err = idempotent.Handle(receiver(t, nil), "billing", nothing[message],
		idempotent.Configure(func(o *idempotent.Options) {
			o.RequireStore = true
		}))
	require.ErrorIs(t, err, idempotent.ErrNoStore)
	_, err = idempotent.New(memory(t), idempotent.Configure(func(o *idempotent.Options) { o.RequireStore = true }))
	require.NoError(t, err)

	var overlooked *memstore.Store // from a constructor whose error was ignored
	_, err = idempotent.New(overlooked)
	require.ErrorContains(t, err, "nil *memstore.Store")
}

func TestWrappedHandlerWithoutStoreIsNamedInTheLog(t *testing.T) {
	log, logs := observe()
	_, err := idempotent.Wrap(nil, "billing", nothing[message], log, idempotent.Configure(func(o *idempotent.Options) {
		o.Channel = "orders"
	}))
	require.NoError(t, err)
	require.Equal(t, map[string]any{"handler_key": "billing", "channel": "orders"}, logs.All()[0].ContextMap())
}

func TestKeysAreCheckedWithoutAWrapperToo(t *testing.T) {
	require.NoError(t, idempotent.Key{MessageID: strings.Repeat("語", 200), HandlerKey: strings.Repeat("é", 200)}.Check())
	require.ErrorIs(t, idempotent.Key{HandlerKey: "h"}.Check(), idempotent.ErrMissingID)
	require.ErrorContains(t, idempotent.Key{MessageID: "m"}.Check(), "handler key is empty")
	require.Error(t, idempotent.Key{MessageID: "m", HandlerKey: strings.Repeat("é", 201)}.Check())
	require.ErrorIs(t, idempotent.Key{MessageID: "m\x00", HandlerKey: "h"}.Check(), envelope.ErrBadID)
}

// The second handler would never get what the first has handled.
func TestTwoHandlersOfOneReceiverCannotShareAKey(t *testing.T) {
	r := receiver(t, memory(t))
	handle(t, r, "billing", nothing[message])
	_, err := idempotent.Handle(r, "billing", nothing[message])
	require.ErrorContains(t, err, `idempotent handler "billing": the receiver has another handler with the key "billing"`)
	_, err = idempotent.Handle(r, "charge", nothing[message], idempotent.LegacyKeys("billing"))
	require.ErrorContains(t, err, `the receiver has another handler with the key "billing"`)
	_, err = idempotent.Handle(r, "mail", nothing[order])
	require.Error(t, err)
	handle(t, r, "mail", nothing[message]) // the failed call has not taken the key
}

func TestHandlerOptionsOverrideTheReceivers(t *testing.T) {
	r := receiver(t, memory(t), idempotent.Configure(func(o *idempotent.Options) {
		o.Duplicates = idempotent.FailDuplicates
		o.AllowMissingID = true
	}))
	mail := handle(t, r, "mail", nothing[message], idempotent.Configure(func(o *idempotent.Options) {
		o.Duplicates = idempotent.SkipDuplicates
	}))
	billing := handle(t, r, "billing", nothing[message])
	for _, h := range []func(context.Context, message) error{mail, billing} {
		require.NoError(t, h(t.Context(), withID("m1")))
		require.NoError(t, h(t.Context(), withID("")), "the receiver's option holds for all")
	}
	require.NoError(t, mail(t.Context(), withID("m1")))
	require.Error(t, billing(t.Context(), withID("m1")), "one handler's option is not another's")
}

func TestHandlersLoggerAllowsLoggingDuplicates(t *testing.T) {
	log, logs := observe()
	r := receiver(t, memory(t), idempotent.Configure(func(o *idempotent.Options) {
		o.Duplicates = idempotent.LogDuplicates
	}))
	_, err := idempotent.Handle(r, "billing", nothing[message])
	require.ErrorContains(t, err, "there is no logger")
	h := handle(t, r, "billing", nothing[message], log)
	require.NoError(t, h(t.Context(), withID("m1")))
	require.NoError(t, h(t.Context(), withID("m1")))
	require.Equal(t, 1, logs.FilterMessageSnippet("duplicate skipped").Len())
	_, err = idempotent.Handle(receiver(t, nil, idempotent.Configure(func(o *idempotent.Options) {
		o.Duplicates = idempotent.LogDuplicates
	})), "billing",
		nothing[message])
	require.NoError(t, err, "without a store there are no duplicates")
}
