package models

import (
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/gorm-inbox/inbox/internal/dialects"
)

// Sequence is a status's place in the order of acceptance (contract 5.12): higher is later. Gaps are normal. PostgreSQL
// assigns it as an identity column. On SQLite the accepting statement does. If it is 0, GORM's Create has it assigned
// (contract 3.4).
type Sequence int64

// GormDBDataType makes AutoMigrate create the identity column that accepting relies on.
func (Sequence) GormDBDataType(db *gorm.DB, _ *schema.Field) string { return identity(db) }

// CreateClauses makes GORM's Create assign a Sequence that is 0.
func (Sequence) CreateClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{assigned{field: field, table: "handler_statuses", key: "sequence"}}
}

// MessageNumber is a message's short name within its inbox, from 1. It is assigned as a Sequence is. It says nothing
// about order, and is never given out again, even after its message was deleted. GORM never updates it.
type MessageNumber int64

// GormDBDataType makes AutoMigrate create the identity column that accepting relies on.
func (MessageNumber) GormDBDataType(db *gorm.DB, _ *schema.Field) string { return identity(db) }

// CreateClauses makes GORM's Create assign a MessageNumber that is 0.
func (MessageNumber) CreateClauses(field *schema.Field) []clause.Interface {
	return []clause.Interface{assigned{field: field, table: "messages", key: "number"}}
}

func identity(db *gorm.DB) string {
	if d, err := dialects.Of(db); err == nil {
		return d.Identity
	}
	return "" // GORM's own choice
}
