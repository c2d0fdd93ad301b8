package postgres

import (
	"database/sql/driver"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// array is a list as a parameter. pgx allocates for each element of a slice, but not for the value of a pointer. The
// server reads it in binary, which costs it less than the elements as text.
type array[E any] []E

// Dimensions, Index and IndexType implement pgtype.ArrayGetter.
func (a array[E]) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(a)), LowerBound: 1}}
}

func (a array[E]) Index(i int) any { return &a[i] }
func (a array[E]) IndexType() any  { return new(E) }

// Value implements driver.Valuer for connections whose statements are not prepared. pgx does not learn the parameters'
// types there, and cannot encode this one by itself.
func (a array[E]) Value() (driver.Value, error) {
	types := pgtype.NewMap()
	list, ok := types.TypeForValue([]E(a))
	if !ok {
		return nil, fmt.Errorf("pgx has no type for %T", []E(a))
	}
	literal, err := types.Encode(list.OID, pgtype.TextFormatCode, []E(a), []byte{})
	return string(literal), err
}

// texts returns a list of text.
func texts(list []string) array[pgtype.Text] {
	values := make(array[pgtype.Text], len(list))
	for i, text := range list {
		values[i] = pgtype.Text{String: text, Valid: true}
	}
	return values
}

// uuids returns a list of UUIDs.
func uuids(list []string) (array[pgtype.UUID], error) {
	values := make(array[pgtype.UUID], len(list))
	for i, text := range list {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%w: status ID %q", err, text)
		}
		values[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	return values, nil
}
