package postgres

// These statements use the indexes that their ORDER BY names, and delete rows by their place: the rows are locked, so
// they stay there. Rows that another transaction uses are skipped. Audit rows need no lock, which would require the
// right to update them: they never change, so each stays at its place. The sub-select reads the clock once, so that the
// index can serve the condition.
const (
	deleteMarkersSQL = `
DELETE FROM {markers} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {markers} WHERE expires_at < (SELECT LEAST($1::timestamptz, {latest})) ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
))`

	deleteAuditSQL = `
DELETE FROM {audit} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {audit} WHERE occurred_at < $1::timestamptz ORDER BY occurred_at LIMIT $2
))`

	deleteRejectedSQL = `
DELETE FROM {rejected} WHERE ctid = ANY (ARRAY(
	SELECT ctid FROM {rejected} WHERE rejected_at < $1::timestamptz ORDER BY rejected_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
))`
)
