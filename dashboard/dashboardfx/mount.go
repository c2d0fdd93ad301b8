// Package dashboardfx mounts the dashboard and the probes of an inbox in an Fx application. It is a separate package,
// so that applications without a dashboard do not compile it.
package dashboardfx

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"go.uber.org/fx"
	"go.uber.org/zap"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/ops"
)

// Mount serves the inbox that inbox.Module(name, …) made on the graph's *http.ServeMux: the dashboard at prefix + "/",
// and the probes at prefix + "/live" and prefix + "/ready". It samples for the charts while the application runs.
//
// configure is a func(o *dashboard.Options, …) without result or with an error. Its further parameters come from the
// graph, as with fx.Invoke:
//
//	dashboardfx.Mount("orders", "/orders/inbox", func(o *dashboard.Options, s *Sessions) { o.Authorizer = s.Principal })
//
// The dashboard logs with the graph's *zap.Logger unless configure sets one. Its ops.Options are the inbox's option
// Ops.
//
// The Authorizer does not guard the probes, whose details may name hosts, topics and handler keys: do not mount them
// where the public can reach them. For another router, or probes elsewhere, use dashboard.New, Inbox.LiveHandler and
// Inbox.ReadyHandler. A wrong prefix or configure fails the start and fx.ValidateApp, an error of configure or a bad
// option the start (contract 10.2, 11.4, 11.5).
func Mount(name, prefix string, configure any) fx.Option {
	set := reflect.ValueOf(configure)
	if err := errors.Join(checkPrefix(prefix), checkConfigure(set)); err != nil {
		return fx.Error(fmt.Errorf("dashboard of inbox %q: %w", name, err))
	}
	params := make([]reflect.Type, 0, set.Type().NumIn())
	for i := 1; i < set.Type().NumIn(); i++ {
		params = append(params, set.Type().In(i))
	}
	// bind takes from the graph what configure needs, and leaves the options to mount.
	bind := reflect.MakeFunc(reflect.FuncOf(params, []reflect.Type{reflect.TypeFor[settings]()}, false),
		func(args []reflect.Value) []reflect.Value {
			return []reflect.Value{reflect.ValueOf(settings(func(o *dashboard.Options) error {
				out := set.Call(append([]reflect.Value{reflect.ValueOf(o)}, args...))
				if len(out) == 0 {
					return nil
				}
				err, _ := out[0].Interface().(error)
				return err
			}))}
		})
	named, own := "", fmt.Sprintf("name:%q", "dashboardfx."+prefix)
	if name != "" {
		named = fmt.Sprintf("name:%q", name)
	}
	return fx.Options(
		fx.Provide(fx.Annotate(bind.Interface(), fx.ResultTags(own))),
		fx.Invoke(fx.Annotate(func(
			mux *http.ServeMux, ib *inbox.Inbox, o *ops.Ops, set settings, log *zap.Logger, lc fx.Lifecycle,
		) error {
			if err := mount(mux, prefix, ib, o, set, log, lc); err != nil {
				return fmt.Errorf("dashboard of inbox %q: %w", name, err)
			}
			return nil
		}, fx.ParamTags("", named, named, own, `optional:"true"`))),
	)
}

// settings sets a dashboard's options.
type settings func(o *dashboard.Options) error

func checkPrefix(prefix string) error {
	if prefix != "" && (!strings.HasPrefix(prefix, "/") || strings.HasSuffix(prefix, "/")) ||
		strings.ContainsAny(prefix, "{} \t\n") {
		return fmt.Errorf("prefix %q: must begin with a slash and not end with one, without braces and spaces", prefix)
	}
	return nil
}

func checkConfigure(set reflect.Value) error {
	ok := set.Kind() == reflect.Func && !set.IsNil()
	if ok {
		t := set.Type()
		ok = !t.IsVariadic() && t.NumIn() > 0 && t.In(0) == reflect.TypeFor[*dashboard.Options]() &&
			(t.NumOut() == 0 || t.NumOut() == 1 && t.Out(0) == reflect.TypeFor[error]())
	}
	if !ok {
		return errors.New("configure: must be a function of *dashboard.Options, and of values of the graph if it likes, that returns nothing or an error")
	}
	return nil
}

func mount(
	mux *http.ServeMux, prefix string, ib *inbox.Inbox, o *ops.Ops, set settings, log *zap.Logger, lc fx.Lifecycle,
) (err error) {
	var failed error
	d, err := dashboard.New(o, func(o *dashboard.Options) {
		failed = set(o)
		if o.Logger == nil {
			o.Logger = log
		}
	})
	if failed != nil {
		return failed // a bad option does not matter then
	}
	if err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil { // the mux has such a path
			err = fmt.Errorf("mount at %q: %v", prefix, p)
		}
	}()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, d))
	mux.Handle("GET "+prefix+"/live", ib.LiveHandler())
	mux.Handle("GET "+prefix+"/ready", ib.ReadyHandler())
	lc.Append(fx.StartStopHook(d.Start, d.Stop))
	return nil
}
