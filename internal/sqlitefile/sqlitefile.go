// Package sqlitefile creates SQLite's files.
package sqlitefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Create makes an empty database file that only the process's user may read and write (mode 0600),
// unless the file exists. SQLite itself lets every user read it. The files beside it, -wal and
// -shm, get its mode from SQLite.
func Create(file string) error {
	// O_EXCL: an existing file is not opened, because closing it would end this process's locks on
	// it.
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("make the SQLite file: %w", err)
	}
	return nil
}
