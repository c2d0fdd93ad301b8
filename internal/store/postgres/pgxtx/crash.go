package pgxtx

import (
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5/pgconn"
)

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
