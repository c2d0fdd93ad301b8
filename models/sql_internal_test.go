package models

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHashIgnoresOnlyCommentsAndWhiteSpace(t *testing.T) {
	text := "-- Rows.\nCREATE TABLE t (\n    a integer\n);\nINSERT INTO t VALUES (1);\n"
	require.Equal(t, hashOf(text), hashOf("-- All rows, of each kind.\n\nCREATE  TABLE t (\n\ta integer\n);\n\n  -- One.\nINSERT INTO t\nVALUES (1);"))
	require.NotEqual(t, hashOf(text), hashOf(strings.Replace(text, "integer", "bigint", 1)))
}
