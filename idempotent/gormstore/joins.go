package gormstore

import "gorm.io/gorm"

// Joins reports whether transactions of db can contain the store's markers (see Mark and WithTx):
// both must use the same connection pool.
func (s *Store) Joins(db *gorm.DB) bool {
	its, itsErr := db.DB()
	ours, oursErr := s.db.DB()
	return itsErr == nil && oursErr == nil && its == ours
}
