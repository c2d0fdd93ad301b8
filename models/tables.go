package models

// All lists one value of every row type, referenced tables first, for
// AutoMigrate and Atlas: db.AutoMigrate(models.All()...). The result equals
// what Migrate makes, but for the statuses' storage parameters on PostgreSQL,
// which docs/postgresql.md tells how to set; it lacks the schema version, so
// run Migrate (or the plain SQL) once over it (contract 3.4). Not for tables
// under another schema or prefix: use Migrate.
func All() []any {
	return []any{
		&Message{}, &HandlerStatus{}, &RejectedMessage{}, &Gap{}, &Lock{}, &Worker{},
		&Handler{}, &Marker{}, &Audit{}, &Meta{},
	}
}

// TableName is the default name; Naming gives others.
func (Message) TableName() string { return "inbox_messages" }

// TableName is the default name; Naming gives others.
func (HandlerStatus) TableName() string { return "inbox_handler_statuses" }

// TableName is the default name; Naming gives others.
func (RejectedMessage) TableName() string { return "inbox_rejected_messages" }

// TableName is the default name; Naming gives others.
func (Gap) TableName() string { return "inbox_gaps" }

// TableName is the default name; Naming gives others.
func (Lock) TableName() string { return "inbox_locks" }

// TableName is the default name; Naming gives others.
func (Worker) TableName() string { return "inbox_workers" }

// TableName is the default name; Naming gives others.
func (Handler) TableName() string { return "inbox_handlers" }

// TableName is the default name; Naming gives others.
func (Marker) TableName() string { return "inbox_markers" }

// TableName is the default name; Naming gives others.
func (Audit) TableName() string { return "inbox_audit" }

// TableName is the default name; Naming gives others.
func (Meta) TableName() string { return "inbox_meta" }
