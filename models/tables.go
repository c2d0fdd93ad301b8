package models

// All returns one value of every row type, referenced tables first, for AutoMigrate and Atlas:
// db.AutoMigrate(models.All()...). The result equals Migrate's with two exceptions (contract 3.4). On PostgreSQL it
// lacks the statuses' storage parameters (docs/postgresql.md shows how to set them). It also lacks the schema version,
// so run Migrate (or the plain SQL) once afterwards. Do not use it for tables with another schema or prefix, or on
// MySQL and MariaDB, where Migrate refuses what AutoMigrate has made: use Migrate.
func All() []any {
	return []any{
		&Message{}, &HandlerStatus{}, &RejectedMessage{}, &Gap{}, &PartitionRequest{}, &Request{}, &Partition{},
		&Lock{}, &Worker{}, &Handler{}, &Marker{}, &Audit{}, &Meta{},
	}
}

// TableName returns the default name. Naming gives others.
func (Message) TableName() string { return "inbox_messages" }

// TableName returns the default name. Naming gives others.
func (HandlerStatus) TableName() string { return "inbox_handler_statuses" }

// TableName returns the default name. Naming gives others.
func (RejectedMessage) TableName() string { return "inbox_rejected_messages" }

// TableName returns the default name. Naming gives others.
func (Gap) TableName() string { return "inbox_gaps" }

// TableName returns the default name. Naming gives others.
func (PartitionRequest) TableName() string { return "inbox_partition_requests" }

// TableName returns the default name. Naming gives others.
func (Request) TableName() string { return "inbox_requests" }

// TableName returns the default name. Naming gives others.
func (Partition) TableName() string { return "inbox_partitions" }

// TableName returns the default name. Naming gives others.
func (Lock) TableName() string { return "inbox_locks" }

// TableName returns the default name. Naming gives others.
func (Worker) TableName() string { return "inbox_workers" }

// TableName returns the default name. Naming gives others.
func (Handler) TableName() string { return "inbox_handlers" }

// TableName returns the default name. Naming gives others.
func (Marker) TableName() string { return "inbox_markers" }

// TableName returns the default name. Naming gives others.
func (Audit) TableName() string { return "inbox_audit" }

// TableName returns the default name. Naming gives others.
func (Meta) TableName() string { return "inbox_meta" }
