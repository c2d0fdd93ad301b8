// Package sqltest is shared by tests of packages that have SQL statements. It reads query plans,
// loads millions of rows, and lists the names of all statements.
package sqltest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// JITCost is the cost from which on PostgreSQL compiles a statement by default (jit_above_cost).
const JITCost = 100_000.0

// Plan is a node of EXPLAIN (ANALYZE, FORMAT JSON).
type Plan struct {
	Type string `json:"Node Type"`
	// Cost is what the planner expects this node and the nodes below it to cost.
	Cost     float64 `json:"Total Cost"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Removed  float64 `json:"Rows Removed by Filter"`
	// Hit and Read are page counts of this node and the nodes below it.
	Hit   float64 `json:"Shared Hit Blocks"`
	Read  float64 `json:"Shared Read Blocks"`
	Plans []Plan  `json:"Plans"`
	// Compiled is whether PostgreSQL compiled the statement (jit), of the plan's first node.
	Compiled bool `json:"-"`
}

// Scans returns every access to a table as "node relation index".
func (p Plan) Scans() (found []string) {
	if p.Relation != "" && strings.Contains(p.Type, "Scan") || p.Index != "" {
		found = append(found, strings.Join(strings.Fields(p.Type+" "+p.Relation+" "+p.Index), " "))
	}
	for _, child := range p.Plans {
		found = append(found, child.Scans()...)
	}
	return found
}

// RowsRead returns how many rows the scans read.
func (p Plan) RowsRead() float64 {
	count := 0.0
	if strings.Contains(p.Type, "Scan") && p.Relation != "" {
		count = (p.Rows + p.Removed) * p.Loops
	}
	for _, child := range p.Plans {
		count += child.RowsRead()
	}
	return count
}

// ParsePlan returns the plan of a statement from the output of EXPLAIN (ANALYZE, FORMAT JSON).
func ParsePlan(t testing.TB, text string) Plan {
	t.Helper()
	var explained []struct {
		Plan Plan
		JIT  any
	}
	require.NoError(t, json.Unmarshal([]byte(text), &explained))
	explained[0].Plan.Compiled = explained[0].JIT != nil
	return explained[0].Plan
}
