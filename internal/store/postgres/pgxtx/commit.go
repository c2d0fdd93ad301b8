package pgxtx

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// ErrUnconfirmed means that a transaction is committed on this server, but that waiting for the synchronous standby was
// cancelled. pg_cancel_backend does that, and so does a driver that cancels when its context ends. A failover may undo
// the commit. The server reports it as success with a warning.
var ErrUnconfirmed = errors.New("waiting for the synchronous standby was cancelled: a failover may undo the commit")

// commit sends COMMIT and reads the response message by message. pgx shows notices only to the configuration of the
// connection, which belongs to the application. commit returns false, and has sent nothing, if the connection is
// closed, busy (with rows that were left open) or outside of a transaction.
//
// A pipeline keeps other users away from the connection until then and gives it the deadline of ctx. The messages that
// we send bypass the pipeline's record of expected responses, except for the synchronization at the end.
func commit(ctx context.Context, c *pgx.Conn) (ended bool, err error) {
	server := c.PgConn()
	if ctx.Err() != nil || server.IsClosed() || server.IsBusy() || server.TxStatus() == 'I' {
		return false, nil
	}
	pipeline := server.StartPipeline(ctx)
	if pipeline.Flush() != nil { // ctx ended just now
		return false, nil
	}
	defer pipeline.Close() // it closes the connection if that was lost
	wire := server.Frontend()
	wire.SendParse(&pgproto3.Parse{Query: "commit"})
	wire.SendBind(&pgproto3.Bind{})
	wire.SendExecute(&pgproto3.Execute{})
	if err = pipeline.Sync(); err == nil {
		err = receive(c, wire)
	}
	if _, lost := pipeline.GetResults(); lost != nil && (err == nil || errors.Is(err, ErrUnconfirmed)) {
		err = lost // before the server was ready again
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return true, err
}

// receive reads up to the message that says how COMMIT has ended.
func receive(c *pgx.Conn, wire *pgproto3.Frontend) (err error) {
	for {
		message, receiveErr := wire.Receive()
		if receiveErr != nil {
			return receiveErr
		}
		switch message := message.(type) {
		case *pgproto3.NoticeResponse:
			notice := pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(message))
			if notice.Routine == "SyncRepWaitForLSN" { // its text is in the server's language
				err = fmt.Errorf("%w: %s", ErrUnconfirmed, notice.Message)
			}
			if f := c.Config().OnNotice; f != nil {
				f(c.PgConn(), (*pgconn.Notice)(notice))
			}
		case *pgproto3.NotificationResponse:
			if f := c.Config().OnNotification; f != nil {
				f(c.PgConn(), &pgconn.Notification{PID: message.PID, Channel: message.Channel, Payload: message.Payload})
			}
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(message)
		case *pgproto3.CommandComplete:
			if string(message.CommandTag) == "ROLLBACK" {
				return pgx.ErrTxCommitRollback
			}
			return err
		}
	}
}

// crashShutdown is the SQLSTATE with which PostgreSQL ends all sessions after a server process has crashed.
const crashShutdown = "57P02"

// Explain adds an error with SQLSTATE 57P02 to the error of a statement if the server has ended the connection because
// another server process crashed.
func (t *Tx) Explain(err error) error {
	if err != nil {
		withDriverConn(t.conn, func(any) { err = t.lent.explain(err) })
	}
	return err
}

// explain needs exclusive use of the connection. PostgreSQL says in a notice, not in an error, that another process
// crashed. pgx shows notices only to the configuration of the connection, which belongs to the application, and does
// not export the last one that it has read.
func (l *lent) explain(err error) error {
	if err == nil {
		return nil
	}
	notice := reflect.ValueOf(l.Conn.Conn().PgConn().Frontend()).Elem().FieldByName("noticeResponse")
	if notice.Kind() != reflect.Struct {
		return err
	}
	text := func(name string) string {
		if field := notice.FieldByName(name); field.Kind() == reflect.String {
			return field.String()
		}
		return ""
	}
	if text("Code") != crashShutdown {
		return err
	}
	return fmt.Errorf("%w: %w", &pgconn.PgError{Severity: text("Severity"), Code: crashShutdown, Message: text("Message")}, err)
}
