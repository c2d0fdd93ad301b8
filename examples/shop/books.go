package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/examples/shop/orders"
	"github.com/gorm-inbox/inbox/examples/shop/shipping"
	"github.com/gorm-inbox/inbox/models"
)

// Status is what is stored about one handler and one message.
type Status struct {
	Completed, Poisoned bool
	Outcome             models.Outcome
}

// Inbox is what one inbox holds.
type Inbox struct {
	Messages map[string]string            // types by ID
	Statuses map[string]map[string]Status // by handler key and message ID
	Rejected int
}

// Books are what is left when the application has stopped.
type Books struct {
	Orders, Shipping                Inbox
	Reserved, Paid, Parcelled       map[string]int // how often, by order ID
	Completed, Poisoned, Unfinished int            // statuses of both
	Unread                          int            // announcements that the broker has and shipping has not
	Mails                           int            // that were sent
}

// ReadBooks reads both databases; the rest of the books is the caller's.
func (g *Ground) ReadBooks(ctx context.Context) (b Books, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	of, sh := g.Orders.DB.WithContext(ctx), g.Shipping.DB.WithContext(ctx)
	for _, read := range []func() error{
		func() (err error) { b.Orders, err = readInbox(of); return err },
		func() (err error) { b.Shipping, err = readInbox(sh); return err },
		func() (err error) { b.Reserved, err = readEffects(of, &orders.Reservation{}); return err },
		func() (err error) { b.Paid, err = readEffects(of, &orders.Payment{}); return err },
		func() (err error) { b.Parcelled, err = readEffects(sh, &shipping.Parcel{}); return err },
	} {
		if err := read(); err != nil {
			return b, fmt.Errorf("read the books: %w", err)
		}
	}
	for _, inbox := range []Inbox{b.Orders, b.Shipping} {
		for _, statuses := range inbox.Statuses {
			for _, s := range statuses {
				switch {
				case s.Completed:
					b.Completed++
				case s.Poisoned:
					b.Poisoned++
				default:
					b.Unfinished++
				}
			}
		}
	}
	return b, nil
}

func readInbox(db *gorm.DB) (in Inbox, err error) {
	in = Inbox{Messages: map[string]string{}, Statuses: map[string]map[string]Status{}}
	var messages []struct{ ID, Type string }
	if err := db.Model(&models.Message{}).Select("id, type").Find(&messages).Error; err != nil {
		return in, err
	}
	for _, m := range messages {
		in.Messages[m.ID] = m.Type
	}
	var statuses []struct {
		MessageID, HandlerKey string
		Status
	}
	err = db.Model(&models.HandlerStatus{}).Select("message_id, handler_key, completed_at IS NOT NULL AS completed, " +
		"is_poisoned AND completed_at IS NULL AS poisoned, outcome").Find(&statuses).Error
	if err != nil {
		return in, err
	}
	for _, s := range statuses {
		if in.Statuses[s.HandlerKey] == nil {
			in.Statuses[s.HandlerKey] = map[string]Status{}
		}
		in.Statuses[s.HandlerKey][s.MessageID] = s.Status
	}
	var rejected int64
	err = db.Model(&models.RejectedMessage{}).Count(&rejected).Error
	in.Rejected = int(rejected)
	return in, err
}

func readEffects(db *gorm.DB, table any) (map[string]int, error) {
	var ids []string
	if err := db.Model(table).Pluck("order_id", &ids).Error; err != nil {
		return nil, err
	}
	times := map[string]int{}
	for _, id := range ids {
		times[id]++
	}
	return times, nil
}
