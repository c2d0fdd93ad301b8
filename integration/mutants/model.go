package main

// modelMutants are defects that the model test and the fuzz targets brought up.
var modelMutants = []mutant{
	{
		Name: "sqlite: a time as a driver writes it is not read",
		Why:  "one status that a user rescheduled would keep its inbox from claiming anything (contract 3.4)",
		File: "internal/store/scan.go",
		Old:  `if fields := strings.Fields(text); len(fields) > 3 {`,
		New:  `if fields := strings.Fields(text); len(fields) > 30 {`,
		Test: test{Package: "./internal/store", Run: "^TestSQLiteClaimsWhatUsersRescheduled$"},
	},
	{
		Name: "a migration's last statement is lost without a semicolon",
		Why:  "a schema would be recorded as migrated that is not (contract 3.4)",
		File: "models/sql.go",
		Old:  "if len(current) > 0 {",
		New:  "if len(current) > 1000 {",
		Test: test{Package: "./models", Run: "^FuzzStatementsLoseNothing$"},
	},
}
