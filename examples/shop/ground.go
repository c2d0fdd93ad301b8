package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/internal/scratch"
	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
)

// Ground is what the application stands on, and what is left when it has ended:
// two databases and the log.
type Ground struct {
	Orders, Shipping *scratch.Place
	Log              *zap.Logger

	logFile *os.File
	out     io.Writer
}

// NewGround makes it, and says where.
func NewGround(ctx context.Context, s Settings, out io.Writer) (*Ground, error) {
	g := &Ground{out: out}
	if err := g.make(ctx, s.Postgres); err != nil {
		return nil, errors.Join(err, g.Close(context.WithoutCancel(ctx), false))
	}
	fmt.Fprintf(out, "orders: %s\nshipping: %s\nlog: %s\n", g.Orders, g.Shipping, g.logFile.Name())
	return g, nil
}

func (g *Ground) make(ctx context.Context, server string) (err error) {
	open := func(dsn string) (*gorm.DB, error) { return scratch.Open(dsn, 2) }
	if g.Orders, err = (scratch.Program{Name: "shop_orders", File: "orders.db", Open: open}).Place(ctx,
		server); err != nil {
		return err
	}
	if g.Shipping, err = (scratch.Program{Name: "shop_shipping", File: "shipping.db", Open: open}).Place(ctx,
		server); err != nil {
		return err
	}
	if g.logFile, err = os.Create(g.Orders.File("shop.log")); err != nil {
		return err
	}
	g.Log = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), g.logFile, zap.InfoLevel))
	return nil
}

// Close removes it, unless it is to be kept.
func (g *Ground) Close(ctx context.Context, keep bool) error {
	var problems []error
	if g.logFile != nil {
		problems = append(problems, g.logFile.Close())
	}
	for _, place := range []*scratch.Place{g.Orders, g.Shipping} {
		if place == nil {
			continue
		}
		if keep {
			fmt.Fprintln(g.out, "kept:", place)
		}
		problems = append(problems, place.Close(ctx, keep))
	}
	return errors.Join(problems...)
}

// Place is where a context's data is.
func (g *Ground) Place(context string) *scratch.Place {
	return map[string]*scratch.Place{orders.Name: g.Orders, shipping.Name: g.Shipping}[context]
}
