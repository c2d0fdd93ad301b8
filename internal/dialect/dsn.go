package dialect

import (
	"time"

	"gorm.io/gorm"
)

// DSN is how a program connects that has only a DSN, such as inboxctl. It is not a part of Dialect, because it needs a
// driver, which each application chooses itself.
type DSN struct {
	*Dialect
	// Form is what such a DSN looks like, for people.
	Form string
	// Takes reports whether a DSN is one of this database, in one of the forms that GORM's driver takes.
	Takes func(dsn string) bool
	// Dialector returns GORM's dialector for the DSN. A wrong DSN is a DSNError.
	Dialector func(dsn string, opening Opening) (gorm.Dialector, error)
	// Explain returns the error of the first connection as people should read it.
	Explain func(error) error
}

// Opening is what a program wants of its connections.
type Opening struct {
	Program string        // its name, for the server's lists
	Timeout time.Duration // of a connection, and of the wait for other writers
	Create  bool          // whether a missing file is created
}

// DSNError says what is wrong with a DSN. It quotes nothing of the DSN that may be a part of a password.
type DSNError string

func (e DSNError) Error() string { return string(e) }
