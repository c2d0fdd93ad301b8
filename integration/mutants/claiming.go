package main

// What would be wrong with claims that pgx reads by itself, and with how results
// travel through the processor.
var claimingMutants = []mutant{
	{
		Name: "postgres: a column keeps the value of the row before",
		Why:  "a message would run as another type, or with another's properties (contract 5.1)",
		File: "internal/store/postgres_claim_read.go",
		Old:  "if string(value) != r.text {",
		New:  "if r.text == \"\" {",
		Test: test{Package: "./internal/store", Run: "^TestClaimsReadTheSameByPgxAndByDatabaseSQL$"},
	},
	{
		Name: "postgres: elements of a list are not quoted",
		Why:  "a place is a list of its own then: nothing would be completed (contract 5.10)",
		File: "internal/store/text.go",
		Old:  "strings.IndexAny(element, `\"\\`)",
		New:  "strings.IndexAny(element, `\"`)",
		Test: test{Package: "./internal/store", Run: "^TestListedIsReadBackAsItWas$"},
	},
	{
		Name: "results that arrive during a write are dropped with what was written",
		Why:  "their statuses would stay claimed for ever (contract 5.9)",
		File: "processor/completer.go",
		Old:  "slices.Delete(c.queue, 0, len(batch))",
		New:  "slices.Delete(c.queue, 0, len(c.queue))",
		Test: hanging(processing("TestWorkStoredBeforeTheStartIsFoundByIt")),
	},
	{
		Name: "the loop is not told of an event that comes alone",
		Why:  "finished handlers would keep their slots until something else happens (contract 5.1)",
		File: "processor/reports.go",
		Old:  "if len(r.events) == 1 {",
		New:  "if len(r.events) == 2 {",
		Test: processing("TestReportsAreTakenOnceEachAndNoneIsLost"),
	},
	{
		Name: "events that a loop leaves behind are nobody's",
		Why:  "what they bring to run again would stay claimed by a worker that is gone (contract 5.8)",
		File: "processor/reports.go",
		Old:  "	return left\n",
		New:  "	return left[:0]\n",
		Test: processing("TestReportsNobodyTakesAreReturnedAtTheEnd"),
	},
	{
		Name: "goroutines that wait for attempts outlive the processor",
		Why:  "each stop would leave some behind (contract 5.8)",
		File: "processor/crew.go",
		Old:  "	for _, jobs := range c.idle {\n		close(jobs)\n	}\n",
		New:  "",
		Test: processing("TestCrewRunsEverythingAndLeavesNothingBehind"),
	},
}
