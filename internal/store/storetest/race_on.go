//go:build race

package storetest

// raceDetector makes SQLite in pure Go thirty times as slow.
const raceDetector = true
