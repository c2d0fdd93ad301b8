package main

import "github.com/gorm-inbox/inbox/bench/trial"

func writeDocs(a about, results []*trial.Result) error { return nil }
