package sqlite

// These statements use the indexes that their ORDER BY names.
const (
	deleteMarkersSQL = `
DELETE FROM {markers} WHERE rowid IN (SELECT rowid FROM {markers} WHERE expires_at < ?1 ORDER BY expires_at LIMIT ?2)`

	deleteAuditSQL = `
DELETE FROM {audit} WHERE rowid IN (SELECT rowid FROM {audit} WHERE occurred_at < ?1 ORDER BY occurred_at LIMIT ?2)`

	deleteRejectedSQL = `
DELETE FROM {rejected} WHERE rowid IN (SELECT rowid FROM {rejected} WHERE rejected_at < ?1 ORDER BY rejected_at, id LIMIT ?2)`
)
