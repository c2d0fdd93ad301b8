package store

// Stamp scans a time however the driver gives it, for packages with queries of
// their own: as a time or, from SQLite without a column's declared type, as
// text. It is UTC; NULL is the zero time.
type Stamp = anyTime
