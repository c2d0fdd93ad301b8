package store

import (
	"reflect"
	"strings"
)

// SQLiteCode returns SQLite's extended result code in an error. It recognizes the drivers' errors
// by their shape: importing mattn's error type needs a C compiler, and a user of one driver should
// not have to link the others.
func SQLiteCode(err error) (code int, found bool) {
	if err == nil {
		return 0, false
	}
	if code, found := driverCode(err); found {
		return code, true
	}
	switch wrapped := err.(type) {
	case interface{ Unwrap() error }:
		return SQLiteCode(wrapped.Unwrap())
	case interface{ Unwrap() []error }:
		for _, each := range wrapped.Unwrap() {
			if code, found := SQLiteCode(each); found {
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
