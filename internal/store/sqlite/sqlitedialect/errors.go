package sqlitedialect

import (
	"reflect"
	"strings"

	"github.com/gorm-inbox/inbox/internal/dialect"
)

// The classes of errors by their result codes: extended ones, or else primary ones.
var classes = map[int]dialect.Class{
	5:    dialect.Transient | dialect.Busy,                           // BUSY
	6:    dialect.Transient | dialect.Busy,                           // LOCKED
	7:    dialect.Transient,                                          // NOMEM
	8:    dialect.Transient,                                          // READONLY
	9:    dialect.Transient | dialect.OfStatement | dialect.TimedOut, // INTERRUPT
	10:   dialect.Transient | dialect.Unknown,                        // IOERR
	13:   dialect.Transient,                                          // FULL
	14:   dialect.Transient,                                          // CANTOPEN
	15:   dialect.Transient,                                          // PROTOCOL
	18:   dialect.Data,                                               // TOOBIG
	19:   dialect.Data,                                               // CONSTRAINT
	1555: dialect.Data | dialect.Duplicate,                           // CONSTRAINT_PRIMARYKEY
	2067: dialect.Data | dialect.Duplicate,                           // CONSTRAINT_UNIQUE
	20:   dialect.Data,                                               // MISMATCH
}

func classify(err error) (dialect.Class, bool) {
	code, found := Code(err)
	if class, known := classes[code]; known {
		return class, true
	}
	return classes[code&0xff], found
}

// Code returns SQLite's extended result code in an error. It recognizes the drivers' errors
// by their shape: importing mattn's error type needs a C compiler, and a user of one driver should
// not have to link the others.
func Code(err error) (code int, found bool) {
	if err == nil {
		return 0, false
	}
	if code, found := driverCode(err); found {
		return code, true
	}
	switch wrapped := err.(type) {
	case interface{ Unwrap() error }:
		return Code(wrapped.Unwrap())
	case interface{ Unwrap() []error }:
		for _, each := range wrapped.Unwrap() {
			if code, found := Code(each); found {
				return code, true
			}
		}
	}
	return 0, false
}

func driverCode(err error) (int, bool) {
	value := reflect.Indirect(reflect.ValueOf(err))
	if !value.IsValid() || !strings.Contains(value.Type().PkgPath(), "sqlite") {
		return 0, false
	}
	// modernc.org/sqlite and glebarez/go-sqlite have an extended code.
	if coded, ok := err.(interface{ Code() int }); ok {
		return coded.Code(), true
	}
	// mattn/go-sqlite3 has two fields, and the extended one may be zero.
	if value.Kind() != reflect.Struct {
		return 0, false
	}
	for _, name := range []string{"ExtendedCode", "Code"} {
		if field := value.FieldByName(name); field.IsValid() && field.CanInt() && field.Int() != 0 {
			return int(field.Int()), true
		}
	}
	return 0, false
}
