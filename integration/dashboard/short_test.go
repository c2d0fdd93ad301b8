package dashboard

import (
	"errors"
	"time"

	"github.com/chromedp/cdproto/runtime"

	"github.com/gorm-inbox/inbox/dashboard"
	"github.com/gorm-inbox/inbox/handler"
)

var refresh = func(o *dashboard.Options) { o.Refresh = time.Second }

func poison(text string) error { return handler.Poison(errors.New(text)) }

func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
