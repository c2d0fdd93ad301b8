package mysqldialect

import (
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/gorm-inbox/inbox/internal/dialect"
)

const (
	refused   = dialect.Refused
	transient = dialect.Transient | dialect.Refused
	collided  = dialect.Transient | dialect.Refused | dialect.Serialization
	data      = dialect.Data | dialect.Refused
	tooLong   = dialect.Transient | dialect.Refused | dialect.OfStatement | dialect.TimedOut
	lost      = dialect.Transient | dialect.Lost | dialect.Unknown

	// unanswered is what Vitess says of what a tablet did not answer, which may be a commit.
	unanswered = dialect.Transient | dialect.Unknown
)

// The numbers of errors that this package knows by name.
const (
	DuplicateEntry  = 1062
	LockWaitTimeout = 1205
	LockNotFree     = 3572
	packetTooLarge  = 1153
	interrupted     = 1317
)

// The classes of errors by their numbers. Any other error is the statement's.
var classes = map[int]dialect.Class{
	1205: transient, // lock wait timeout: the statement alone is undone
	1213: collided,  // deadlock
	1020: collided | dialect.Snapshot,
	1412: collided,                 // a table that is newer than the transaction's snapshot
	3100: collided, 3101: collided, // another member of the group was first
	3572:        transient,
	interrupted: unanswered | dialect.OfStatement | dialect.TimedOut, 1969: tooLong, 3024: tooLong,
	1062: data | dialect.Duplicate, 1586: data | dialect.Duplicate,
	1048: data, 1264: data, 1265: data, 1292: data, 1364: data, 1366: data, 1406: data, 1451: data, 1452: data, 1690: data,
	3819: data, 4025: data, packetTooLarge: data, 3140: data,
	1021: transient, 1037: transient, 1038: transient, 1040: transient, 1041: transient, 1047: transient, 1114: transient,
	1203: transient, 1206: transient, 1226: transient, 1637: transient, 1689: transient,
	1290: transient | dialect.ReadOnly, 1792: transient | dialect.ReadOnly, 1836: transient | dialect.ReadOnly,
	1053: lost, 1077: lost, 1079: lost, 1152: lost, 1158: lost, 1159: lost, 1160: lost, 1161: lost, 1184: lost,
	1927: lost, 3169: lost, 2006: lost, 2013: lost, 4031: lost,
	1180: dialect.Transient | dialect.Unknown, // an error during the commit
	1105: unanswered,
	1815: dialect.Unknown, // an error of Vitess itself, which may also refuse a statement for good
}

// permanent are parts of the texts of 1105 with which Vitess refuses a statement for good.
var permanent = []string{"VT12001", "VT03", "VT09", "syntax error at position"}

// endedByTablet is in the text of 1317 where a tablet of Vitess no longer has a transaction: MySQL was lost, the tablet
// was started again, or another one is the primary. overdue is there if the tablet ended it for its age, so that it
// refuses a commit.
var endedByTablet = regexp.MustCompile(`transaction \d+: (ended at|not found)|(transaction|connection) was aborted`)

const overdue = "(exceeded timeout: "

func classify(err error) (dialect.Class, bool) {
	number, text, found := Code(err)
	switch {
	case !found:
		return 0, false
	case number == interrupted && strings.Contains(text, overdue):
		return tooLong, true
	case number == interrupted && endedByTablet.MatchString(text):
		return unanswered, true
	case number == 1105 && slices.ContainsFunc(permanent, func(part string) bool { return strings.Contains(text, part) }):
		return refused, true
	}
	if class, known := classes[number]; known {
		return class, true
	}
	return refused, true
}

// rolledBack reports whether an error may have undone the whole transaction. The session then commits each further
// statement by itself, and says so nowhere. So any error counts, unless it is known to undo its statement alone: the
// statement's text or data was refused, a trigger has raised it, or a lock was not free. Behind Vitess even these may
// undo the transaction, and their texts say so.
func rolledBack(failure error, _ func(statement string) error) bool {
	found, is := find(failure)
	switch {
	case !is:
		return false
	case strings.Contains(found.text, "transaction rolled back"):
		return true
	case found.number == LockWaitTimeout || found.number == LockNotFree || classes[found.number].Has(dialect.Data):
		return false
	case classes[found.number] != 0 || len(found.state) < 2:
		return true
	}
	return !slices.Contains([]string{"21", "22", "23", "42", "45"}, found.state[:2])
}

// lostConnection is the number that Code returns for the driver's own error of a connection that was lost. For that of
// a statement that is too large it returns packetTooLarge.
const lostConnection = 2013

// Code returns the number and the text of the server's error in an error.
func Code(err error) (number int, text string, found bool) {
	e, found := find(err)
	return e.number, e.text, found
}

// serverError is an error of the server: its number, its SQLSTATE if the server gave one, and its text.
type serverError struct {
	number      int
	state, text string
}

// find returns the server's error in an error. It recognizes the error of github.com/go-sql-driver/mysql by its shape,
// so that users of other databases need not download that driver.
func find(err error) (serverError, bool) {
	if err == nil {
		return serverError{}, false
	}
	switch text := err.Error(); {
	case text == "invalid connection":
		return serverError{number: lostConnection, text: text}, true
	case strings.HasPrefix(text, "packet for query is too large"):
		return serverError{number: packetTooLarge, text: text}, true
	}
	value := reflect.Indirect(reflect.ValueOf(err))
	if value.Kind() == reflect.Struct && strings.HasSuffix(value.Type().PkgPath(), "/mysql") {
		number, state := value.FieldByName("Number"), value.FieldByName("SQLState")
		if number.IsValid() && number.CanUint() {
			e := serverError{number: int(number.Uint()), text: err.Error()}
			e.state = stateOf(state)
			return e, true
		}
	}
	switch wrapped := err.(type) {
	case interface{ Unwrap() error }:
		return find(wrapped.Unwrap())
	case interface{ Unwrap() []error }:
		for _, each := range wrapped.Unwrap() {
			if e, found := find(each); found {
				return e, true
			}
		}
	}
	return serverError{}, false
}

// stateOf returns a field of five bytes as a text.
func stateOf(field reflect.Value) string {
	if !field.IsValid() || field.Kind() != reflect.Array || field.Type().Elem().Kind() != reflect.Uint8 {
		return ""
	}
	state := make([]byte, field.Len())
	reflect.Copy(reflect.ValueOf(state), field)
	return strings.TrimRight(string(state), "\x00")
}
