package inbox

import (
	"context"

	"gorm.io/gorm"

	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/stores"
	"github.com/gorm-inbox/inbox/models"
)

// ErrPartitionsLeft says that a cleanup has to drop partitions before their tables can be as before.
var ErrPartitionsLeft = store.ErrPartitionsLeft

// Partition gives an inbox's tables the partitioned layout, in which cleanup drops whole partitions instead of deleting
// rows (contract 6.8). It needs PostgreSQL, MySQL 8.4 or MariaDB 11.4 (docs/partitions.md says what differs there),
// tables that exist, a role that owns them, and a pool of two connections.
// Programs may use the tables meanwhile if they have this version of the module: their first statement for the other
// layout fails, and a call of AcceptTx or ProcessPending may therefore fail once, with a transient error. Reading all
// IDs takes long on large tables. Before and after that it waits for a moment without long transactions, until ctx
// ends. Repeat it after an error: it begins anew. On tables that have this layout it grants the rights of those who use
// them again, and takes back what Unpartition has begun. It is an error while another call changes the layout, and if a
// view, publication, trigger or policy depends on the tables. Do not use it where a handler keeps its statuses forever,
// or beside transactions that always last longer than half a second.
func Partition(ctx context.Context, db *gorm.DB, tables models.Naming) error {
	return stores.Partition(ctx, db, tables)
}

// Unpartition gives partitioned tables the plain layout again, under the same conditions. It copies few rows, so all
// but the newest partition must be gone. The first call lets no new one begin, and until a cleanup has dropped the
// others, after the longest retention, calls return ErrPartitionsLeft. Call it again then. On plain tables it takes
// back what an interrupted Partition has left.
func Unpartition(ctx context.Context, db *gorm.DB, tables models.Naming) error {
	return stores.Unpartition(ctx, db, tables)
}
