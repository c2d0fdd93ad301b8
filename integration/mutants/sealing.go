package main

// sealingMutants store or compare what should be sealed (contract 15).
var sealingMutants = []mutant{
	{
		Name:    "a sealed message is stored with its plain content",
		Why:     "what is to be encrypted would be readable in the database and its backups",
		Package: "acceptor",
		In:      "Acceptor.seal",
		Old:     "row.Content, row.PlainSHA256 = content, seal.SHA256",
		New:     "_, row.PlainSHA256 = content, seal.SHA256",
		Test:    test{Package: ".", Run: "^TestStoredContentsAreSealedAndEveryHandlerGetsThemPlain$"},
	},
	{
		Name:    "sealed contents are compared as they are stored",
		Why:     "each redelivery would count as other content, and be rejected on demand (contract 4.3)",
		Package: "internal/store/base",
		In:      "ContentDiffers",
		Old:     `seal.Key != ""`,
		New:     "false",
		Test:    test{Package: "./internal/store/sqlite", Run: "^TestSQLite$/^Accept$/^sealed_contents"},
	},
	{
		Name:    "the record of a conflict is kept plain",
		Why:     "a producer's repeated ID would put the content into the database as it is",
		Package: "acceptor",
		In:      "intake.rejectLate",
		Old:     "in.sealRejected(ctx, late)",
		New:     "error(nil)",
		Test:    test{Package: "./acceptor", Run: "^TestRejectedRecordsAreKeptSealed$"},
	},
}
