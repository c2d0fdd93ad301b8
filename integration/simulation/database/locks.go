package database

import (
	"database/sql/driver"
	"fmt"
	"strings"
)

// Mode is how a row or a key is locked, as in PostgreSQL's manual, 13.3.2.
type Mode int

// The modes, the weakest first.
const (
	KeyShare    Mode = iota // of a row that another one refers to
	Share                   // FOR SHARE
	NoKeyUpdate             // of an update
	Update                  // FOR UPDATE; of a deletion and of a unique key
)

// conflicts says which modes exclude each other between transactions.
var conflicts = [4][4]bool{
	KeyShare:    {Update: true},
	Share:       {NoKeyUpdate: true, Update: true},
	NoKeyUpdate: {Share: true, NoKeyUpdate: true, Update: true},
	Update:      {KeyShare: true, Share: true, NoKeyUpdate: true, Update: true},
}

// lock names what is locked: a row of a table, or a key of a unique index.
type lock struct{ table, key string }

// ownerOf returns another transaction that keeps tx from locking something.
func (d *Database) ownerOf(key lock, mode Mode, tx *transaction) *transaction {
	for owner, theirs := range d.owners[key] {
		if owner != tx && conflicts[mode][theirs] {
			return owner
		}
	}
	return nil
}

func (d *Database) take(key lock, mode Mode, tx *transaction) {
	if d.owners[key] == nil {
		d.owners[key] = map[*transaction]Mode{}
	}
	d.owners[key][tx] = max(mode, d.owners[key][tx])
	tx.locks[key] = true
}

// want notes that the current statement locks something.
func (d *Database) want(key lock, mode Mode) { d.wanted[key] = max(mode, d.wanted[key]) }

// lockRow is LockFunction.
func (d *Database) lockRow(args []driver.Value) (driver.Value, error) {
	table, ok := args[0].(string)
	table = strings.Trim(table, `"`)
	mode, known := args[2].(int64)
	skip, _ := args[3].(int64)
	if !ok || !known || mode < int64(KeyShare) || mode > int64(Update) {
		return false, fmt.Errorf("%s: bad arguments %v", LockFunction, args)
	}
	key := lock{table, fmt.Sprint(args[1])}
	if other := d.ownerOf(key, Mode(mode), d.current); other != nil {
		if skip == 0 {
			d.blocker = other
		}
		return false, nil
	}
	d.want(key, Mode(mode))
	return true, nil
}
