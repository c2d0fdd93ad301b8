// Package schema compares docs/schema.md with the migrations and the models.
package schema
