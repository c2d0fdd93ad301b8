package main

import (
	"os"
	"strings"

	"go.uber.org/fx"
	"go.uber.org/zap"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
)

func main() {
	fx.New(
		fx.Provide(
			zap.NewProduction,
			fx.Annotate(openDB, fx.ResultTags(`name:"shop"`)),
		),
		inbox.Module("shop", // takes the *gorm.DB named "shop"
			inbox.Configure(func(o *inbox.Options) { o.Migrate = true }), // makes the inbox's tables
			orders(inbox.Kafka(kafkaconsumer.Config{
				Brokers: strings.Split(os.Getenv("KAFKA_BROKERS"), ","),
				Topics:  []string{"orders.events"},
				GroupID: "shop",
			})),
		),
	).Run()
}

func openDB(lc fx.Lifecycle) (*gorm.DB, error) {
	db, err := gorm.Open(postgres.Open(os.Getenv("DATABASE_URL")), &gorm.Config{})
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	lc.Append(fx.StopHook(pool.Close))
	return db, db.AutoMigrate(&Stock{})
}
