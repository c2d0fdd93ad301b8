package handlertx

import "gorm.io/gorm"

// AfterCommit calls f after the commit of the handler's transaction that tx is a session of. It
// does not call f if a savepoint that was set before is rolled back to. It reports false and does
// nothing if tx is in no transaction that a handler runs in.
func AfterCommit(tx *gorm.DB, f func()) bool {
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok {
		pool = prepared.Tx
	}
	w, ok := pool.(*WatchedTx)
	if !ok {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = append(w.after, f)
	return true
}

// Committed calls the functions that wait for the transaction's commit.
func (w *WatchedTx) Committed() {
	w.mu.Lock()
	after := w.after
	w.after = nil
	w.mu.Unlock()
	for _, f := range after {
		f()
	}
}
