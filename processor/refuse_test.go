package processor_test

import (
	"fmt"
	"testing"

	"github.com/gorm-inbox/inbox/internal/inboxtest"
)

// refuse makes the database refuse writes of rows for which condition holds, until allow is called.
// The condition refers to OLD and NEW; for inserts to NEW only.
func refuse(t *testing.T, d *inboxtest.Database, events, table, condition string) (allow func()) {
	t.Helper()
	if d.Dialect == "postgres" {
		inboxtest.Exec(t, d.DB,
			`CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused by the test''; END'`)
		inboxtest.Exec(t, d.DB,
			fmt.Sprintf("CREATE TRIGGER %[2]s_refused BEFORE %[1]s ON %[2]s FOR EACH ROW WHEN (%[3]s) EXECUTE FUNCTION refuse()",
				events, table, condition))
		return func() { t.Helper(); inboxtest.Exec(t, d.DB, fmt.Sprintf("DROP TRIGGER %[1]s_refused ON %[1]s", table)) }
	}
	if d.Dialect == "mysql" {
		inboxtest.Exec(t, d.DB, fmt.Sprintf(
			"CREATE TRIGGER %[2]s_refused BEFORE %[1]s ON %[2]s FOR EACH ROW BEGIN IF %[3]s THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused by the test'; END IF; END",
			events, table, condition))
		return func() { t.Helper(); inboxtest.Exec(t, d.DB, fmt.Sprintf("DROP TRIGGER %s_refused", table)) }
	}
	inboxtest.Exec(t, d.DB,
		fmt.Sprintf("CREATE TRIGGER %[2]s_refused BEFORE %[1]s ON %[2]s WHEN %[3]s BEGIN SELECT RAISE(ABORT, 'refused by the test'); END", events, table, condition))
	return func() { t.Helper(); inboxtest.Exec(t, d.DB, fmt.Sprintf("DROP TRIGGER %s_refused", table)) }
}

// refuseHeartbeats makes the database refuse heartbeats and nothing else.
func refuseHeartbeats(t *testing.T, d *inboxtest.Database) (allow func()) {
	t.Helper()
	return refuse(t, d, "INSERT", "inbox_workers", "NEW.id IS NOT NULL")
}

// refuseResults makes the database refuse the results of statuses for which the condition holds.
func refuseResults(t *testing.T, d *inboxtest.Database, condition string) (allow func()) {
	t.Helper()
	return refuse(t, d, "UPDATE", "inbox_handler_statuses",
		"OLD.processing_started_at IS NOT NULL AND NEW.processing_started_at IS NULL AND "+condition)
}
