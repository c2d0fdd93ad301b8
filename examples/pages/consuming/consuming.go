// Package consuming is the code of docs/kafka.md.
package consuming

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"time"

	"github.com/gorm-inbox/inbox"
	"github.com/gorm-inbox/inbox/envelope"
	"github.com/gorm-inbox/inbox/handler"
	"github.com/gorm-inbox/inbox/kafkaconsumer"
	"github.com/gorm-inbox/inbox/ops"
)

// OrderPlaced is a payload.
type OrderPlaced struct{ OrderID string }

type handle = func(ctx context.Context, m handler.Message[OrderPlaced]) error

// secured declares a channel whose brokers require TLS and SCRAM.
func secured(brokers []string, authorities *x509.CertPool, password string, fulfilOrder handle) inbox.Option {
	return inbox.Channel("orders.events",
		//page:begin secure
		inbox.Kafka(kafkaconsumer.Config{
			Brokers: brokers, // two or three of the cluster, such as "kafka-1:9093"
			Topics:  []string{"orders.events"},
			GroupID: "fulfilment",
			TLS:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: authorities}, // nil RootCAs: the system's
			SASL:    kafkaconsumer.SASL{Mechanism: "SCRAM-SHA-512", Username: "fulfilment", Password: password},
		}),
		//page:end
		inbox.On("order.placed", inbox.Func("fulfil-order", fulfilOrder)))
}

// The decoders below are fields of a kafkaconsumer.Config.
var (
	byHeaders = kafkaconsumer.Config{
		//page:begin headers
		Decoder: envelope.DecoderConfig{ID: envelope.HeaderID("event-id"), TypeHeader: "event-type"},
		//page:end
	}
	byBody = kafkaconsumer.Config{
		//page:begin body
		Decoder: envelope.DecoderConfig{Type: "order.placed", ID: envelope.Func(func(in envelope.IDInput) (string, error) {
			var body struct{ EventID string }
			err := json.Unmarshal(in.Data, &body)
			return body.EventID, err
		})},
		//page:end
	}
	bySourceAndID = kafkaconsumer.Config{
		//page:begin events
		Decoder: envelope.DecoderConfig{Mode: envelope.CloudEvents, ID: envelope.SourceAndID()},
		//page:end
	}
	withTombstones = kafkaconsumer.Config{
		//page:begin tombstones
		Decoder: envelope.DecoderConfig{Tombstones: envelope.TombstoneHandle, TypeHeader: "MessageType",
			Type: "order.deleted", AllowMissingID: true}, // the type and ID of records without headers
		//page:end
	}
	byDebezium = kafkaconsumer.Config{
		//page:begin debezium
		Decoder: envelope.DecoderConfig{TypeHeader: "eventType"}, // the ID is found in Debezium's header "id"
		//page:end
	}
)

// readAgain reads what was produced in a period again. It is for an endpoint or a command of the application.
func readAgain(
	ctx context.Context, ib *inbox.Inbox, actor ops.Actor, from, to time.Time, dryRun bool,
) (envelope.ReadAgainResult, error) {
	o, err := ib.Ops()
	if err != nil {
		return envelope.ReadAgainResult{}, err
	}
	//page:begin again
	result, err := o.ReadAgain(ctx, actor, envelope.ReadAgain{Channel: "orders.events", Topic: "orders.events",
		From: from, To: to, DryRun: dryRun})
	//page:end
	return result, err
}
