package mysqldialect

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"
)

// List is an argument for {list ?1}: the values of IN.
type List []any

// Rows is an argument for {rows ?1}, a query of these rows with the columns c0, c1 and so on. A List has one column.
type Rows [][]any

// Translating returns a pool that takes the statements of the inbox, and no others, in the SQL that all databases have
// in common:
//
//   - $1 or ?1 is the first argument, wherever and however often it stands; MySQL knows the order alone
//   - {list ?1} and {rows ?1} stand for a list, which is a List, a JSON array, or for {rows ?1} Rows
//   - names are in double quotes
//   - ON CONFLICT is ON DUPLICATE KEY
//   - rows are compared column by column, so that an index serves a range
//
// Times are passed as texts in UTC, whatever zone the driver is set to. Statements are not prepared, whatever the
// application has told GORM: each length of a list is a text of its own, and a server has few prepared statements.
func Translating(pool gorm.ConnPool) gorm.ConnPool {
	switch pool := pool.(type) {
	case nil, translating, *translatingTx:
		return pool
	case *gorm.PreparedStmtDB:
		return Translating(pool.ConnPool)
	case *gorm.PreparedStmtTX:
		return Translating(pool.Tx)
	case gorm.TxCommitter:
		return &translatingTx{translating{pool.(gorm.ConnPool)}, pool}
	default:
		return translating{pool}
	}
}

type translating struct{ gorm.ConnPool }

// translatingTx is a pointer, because GORM asks whether it is nil.
type translatingTx struct {
	translating
	gorm.TxCommitter
}

func (t translating) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	text, args, err := translate(text, args)
	if err != nil {
		return nil, err
	}
	return t.ConnPool.ExecContext(ctx, text, args...)
}

func (t translating) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	text, args, err := translate(text, args)
	if err != nil {
		return nil, err
	}
	return t.ConnPool.QueryContext(ctx, text, args...)
}

// BeginTx implements gorm.ConnPoolBeginner.
func (t translating) BeginTx(ctx context.Context, options *sql.TxOptions) (gorm.ConnPool, error) {
	var tx gorm.ConnPool
	err := gorm.ErrInvalidTransaction
	switch pool := t.ConnPool.(type) {
	case gorm.TxBeginner:
		tx, err = pool.BeginTx(ctx, options)
	case gorm.ConnPoolBeginner:
		tx, err = pool.BeginTx(ctx, options)
	}
	if err != nil {
		return nil, err
	}
	return Translating(tx), nil
}

// GetDBConn implements gorm.GetDBConnector.
func (t translating) GetDBConn() (*sql.DB, error) {
	switch pool := t.ConnPool.(type) {
	case *sql.DB:
		return pool, nil
	case gorm.GetDBConnector:
		return pool.GetDBConn()
	}
	return nil, gorm.ErrInvalidDB
}

// part is a piece of a statement's text, and the argument after it.
type part struct {
	text     string
	argument int // from 1; 0 at the end of the text
	kind     byte
}

// The kinds of arguments.
const (
	oneValue = iota
	listOfValues
	rowsOfValues
)

var (
	statements sync.Map // text → []part
	parameter  = regexp.MustCompile(`\{(list|rows) [$?](\d+)\}|[$?](\d+)`)
	onConflict = regexp.MustCompile(`ON CONFLICT \("?(\w+)"?[^)]*\) DO (NOTHING|UPDATE SET)`)
	excluded   = regexp.MustCompile(`(?i)excluded\.("?\w+"?)`)
	compared   = regexp.MustCompile(`\(([\w."]+), ([\w."]+)\) ([<>]=?) \(([^(),]+|COALESCE\([^()]*\)), ([^(),]+)\)`)
)

// casts name types as MySQL does.
var casts = strings.NewReplacer(` AS text)`, ` AS CHAR)`, ` AS bigint)`, ` AS SIGNED)`, ` AS integer)`, ` AS SIGNED)`,
	` NULLS FIRST`, ``)

func parse(text string) []part {
	if known, found := statements.Load(text); found {
		return known.([]part)
	}
	common := text
	common = onConflict.ReplaceAllStringFunc(common, func(found string) string {
		names := onConflict.FindStringSubmatch(found)
		if names[2] == "NOTHING" {
			return fmt.Sprintf(`ON DUPLICATE KEY UPDATE "%[1]s" = "%[1]s"`, names[1])
		}
		return `ON DUPLICATE KEY UPDATE`
	})
	common = excluded.ReplaceAllString(common, `VALUES($1)`)
	common = compared.ReplaceAllStringFunc(common, func(found string) string {
		c := compared.FindStringSubmatch(found)
		return fmt.Sprintf(`(%[1]s %[3]s= %[4]s AND (%[1]s %[3]s %[4]s OR %[2]s %[6]s %[5]s))`, c[1], c[2], c[3][:1], c[4], c[5], c[3])
	})
	common = casts.Replace(strings.ReplaceAll(common, `"`, "`"))
	var parts []part
	at := 0
	for _, m := range parameter.FindAllStringSubmatchIndex(common, -1) {
		p := part{text: common[at:m[0]]}
		number := ""
		switch {
		case m[2] < 0:
			number = common[m[6]:m[7]]
		case common[m[2]:m[3]] == "rows":
			number, p.kind = common[m[4]:m[5]], rowsOfValues
		default:
			number, p.kind = common[m[4]:m[5]], listOfValues
		}
		p.argument, _ = strconv.Atoi(number)
		parts, at = append(parts, p), m[1]
	}
	parts = append(parts, part{text: common[at:]})
	statements.Store(text, parts)
	return parts
}

func translate(text string, args []any) (string, []any, error) {
	parts := parse(text)
	var out strings.Builder
	var values []any
	for _, p := range parts {
		out.WriteString(p.text)
		if p.argument == 0 {
			continue
		}
		if p.argument > len(args) {
			return "", nil, fmt.Errorf("statement has parameter %d and %d arguments: %s", p.argument, len(args), text)
		}
		switch argument := args[p.argument-1]; p.kind {
		case listOfValues:
			list, err := listOf(argument)
			if err != nil {
				return "", nil, err
			}
			if len(list) == 0 {
				out.WriteString("NULL")
				continue
			}
			out.WriteString("?" + strings.Repeat(", ?", len(list)-1))
			for _, value := range list {
				values = append(values, valueOf(value))
			}
		case rowsOfValues:
			rows, err := rowsOf(argument)
			if err != nil {
				return "", nil, err
			}
			out.WriteString(asQuery(rows))
			for _, row := range rows {
				for _, value := range row {
					values = append(values, valueOf(value))
				}
			}
		default:
			out.WriteByte('?')
			values = append(values, valueOf(argument))
		}
	}
	if len(parts) == 1 { // a statement without parameters of this form
		values = args
	}
	return out.String(), values, nil
}

func asQuery(rows Rows) string {
	if len(rows) == 0 {
		return "SELECT NULL AS c0, NULL AS c1, NULL AS c2 FROM DUAL WHERE false"
	}
	first := "SELECT ? AS c0"
	for i := 1; i < len(rows[0]); i++ {
		first += ", ? AS c" + strconv.Itoa(i)
	}
	return first + strings.Repeat(" UNION ALL SELECT ?"+strings.Repeat(", ?", len(rows[0])-1), len(rows)-1)
}

func listOf(argument any) (List, error) {
	switch argument := argument.(type) {
	case List:
		return argument, nil
	case string:
		var list List
		return list, decode(argument, &list)
	}
	return nil, fmt.Errorf("%T is no list", argument)
}

func rowsOf(argument any) (Rows, error) {
	switch argument := argument.(type) {
	case Rows:
		return argument, nil
	case List:
		rows := make(Rows, len(argument))
		for i, value := range argument {
			if row, several := value.([]any); several {
				rows[i] = row
			} else {
				rows[i] = []any{value}
			}
		}
		return rows, nil
	case string:
		var list List
		if err := decode(argument, &list); err != nil {
			return nil, err
		}
		return rowsOf(list)
	}
	return nil, fmt.Errorf("%T is no list of rows", argument)
}

// decode keeps numbers as they are: a float has too few digits for them.
func decode(text string, into *List) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode(into)
}

// valueOf returns a value as the driver is to pass it.
func valueOf(value any) any {
	switch value := value.(type) {
	case time.Time:
		return Time(value)
	case *time.Time:
		if value == nil {
			return nil
		}
		return Time(*value)
	case json.Number:
		if number, err := value.Int64(); err == nil {
			return number
		}
		return string(value)
	case bool:
		if value {
			return 1
		}
		return 0
	}
	return value
}

// Time formats a time as its columns have it.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000") }
