package main

func remembering(run string) test {
	return test{Package: "./idempotent/memstore", Run: "^" + run + "$"}
}

// conforming is a promise of the suite that every store passes, kept by the one
// in memory: a mutant of it shows that the suite would notice a store's breach.
func conforming(promise string) test {
	return test{Package: "./idempotent/memstore", Run: "^TestConformance$/^by the system/^" + promise + "$"}
}

// memstoreMutants are of the suite of a store, and of the one in memory.
var memstoreMutants = []mutant{
	{
		Name: "a run without a retention is remembered for none",
		Why:  "the next sweep would forget what was processed a moment ago (contract 8.4)",
		File: "idempotent/memstore/markers.go",
		Old:  "	if run.Retention == 0 {",
		New:  "	if run.Retention < 0 {",
		Test: conforming("a run without a retention is remembered for the store's own"),
	},
	{
		Name: "a body's failure is remembered as success",
		Why:  "the message would be lost as a duplicate (contract 8.4)",
		File: "idempotent/memstore/store.go",
		Old:  "	succeeded = err == nil\n",
		New:  "	succeeded = true\n",
		Test: conforming("a body's failure leaves no marker"),
	},
	{
		Name: "a body's panic is remembered as success",
		Why:  "the message would be lost as a duplicate (contract 8.4)",
		File: "idempotent/memstore/store.go",
		Old:  "	succeeded := false\n	// Also",
		New:  "	succeeded := true\n	// Also",
		Test: conforming("a body's panic goes on to the caller and leaves no marker"),
	},
	{
		Name: "a key stays taken by a goroutine that has ended",
		Why:  "the message could not be handled until the process ends (contract 8.4)",
		File: "idempotent/memstore/store.go",
		Old:  "	defer func() { s.end(run, ended, succeeded) }()\n	err = body(ctx)\n	succeeded = err == nil\n",
		New:  "	err = body(ctx)\n	succeeded = err == nil\n	s.end(run, ended, succeeded)\n",
		Test: conforming("a body that ends its goroutine leaves no marker"),
	},
	{
		Name: "a key is claimed by two calls at once",
		Why:  "both would handle the message (contract 8.2)",
		File: "idempotent/memstore/store.go",
		Old:  "	if other = s.running[key]; other != nil {",
		New:  "	if other = s.running[key]; other != nil && s.cfg.MaxKeys < 0 {",
		Test: conforming("of 50 calls at the same time one handles the message"),
	},
	{
		Name: "a message that is being handled elsewhere is a duplicate",
		Why:  "it would be acknowledged, and lost if that call fails (contract 8.2)",
		File: "idempotent/memstore/store.go",
		Old:  "		return nil, other, false, nil",
		New:  "		return nil, nil, true, nil",
		Test: conforming("a message that is being handled is not processed, nor handled beside"),
	},
	{
		Name: "who has waited takes the other's success for granted",
		Why:  "a message whose handler failed would be lost (contract 8.2)",
		File: "idempotent/memstore/store.go",
		Old:  "		case <-other:\n",
		New:  "		case <-other:\n			return nil, true, nil\n",
		Test: conforming("a call waits for another and handles the message after its failure"),
	},
	{
		Name: "waiting does not end with its context",
		Why:  "a consumer could not stop while a message is handled elsewhere (contract 8.2)",
		File: "idempotent/memstore/store.go",
		Old:  "		case <-ctx.Done():\n			return fail",
		New:  "		case <-timeout:\n			return fail",
		Test: remembering("TestCallThatWaitsEndsWithItsContext"),
	},
	{
		Name: "a context that has ended is not looked at",
		Why:  "a stopped consumer would begin to handle messages",
		File: "idempotent/memstore/store.go",
		Old:  "	if err := ctx.Err(); err != nil {\n		return fail(err)\n	}\n	var timeout",
		New:  "	var timeout",
		Test: conforming("a context that has ended before the call leaves the body uncalled"),
	},
	{
		Name: "what has expired is no duplicate",
		Why:  "the marker's presence decides, not its expiry (contract 8.4)",
		File: "idempotent/memstore/store.go",
		Old:  "	if s.markers[key] != nil {\n		return nil, nil, true, nil",
		New:  "	if m := s.markers[key]; m != nil && m.expiresAt.After(s.cfg.clock.Now()) {\n		return nil, nil, true, nil",
		Test: conforming("what is past its retention is a duplicate until cleanup"),
	},
	{
		Name: "handlers share their keys",
		Why:  "a message would be handled by one of its handlers only (contract 8.3)",
		File: "idempotent/memstore/store.go",
		Old:  "	ended, duplicate, err := s.claim(ctx, run.Key)",
		New:  "	run.Key.HandlerKey = \"\"\n	ended, duplicate, err := s.claim(ctx, run.Key)",
		Test: conforming("handlers of one message and messages of one handler are independent"),
	},
	{
		Name: "message ID and handler key are joined",
		Why:  "another message would be lost as a duplicate (contract 8.3)",
		File: "idempotent/memstore/store.go",
		Old:  "	ended, duplicate, err := s.claim(ctx, run.Key)",
		New:  "	run.Key = idempotent.Key{MessageID: run.Key.MessageID + \":\" + run.Key.HandlerKey}\n	ended, duplicate, err := s.claim(ctx, run.Key)",
		Test: conforming("keys that are the same when joined are not the same"),
	},
	{
		Name: "handler key and message ID are joined",
		Why:  "another message would be lost as a duplicate (contract 8.3)",
		File: "idempotent/memstore/store.go",
		Old:  "	ended, duplicate, err := s.claim(ctx, run.Key)",
		New:  "	run.Key = idempotent.Key{MessageID: run.Key.HandlerKey + \":\" + run.Key.MessageID}\n	ended, duplicate, err := s.claim(ctx, run.Key)",
		Test: conforming("keys that are the same when joined are not the same"),
	},
	{
		Name: "cleanup forgets what has not expired",
		Why:  "duplicates would be handled again (contract 8.4)",
		File: "idempotent/memstore/markers.go",
		Old:  "	for n < cleanupBatch && s.forget(before) {",
		New:  "	for n < cleanupBatch && s.forget(before.Add(time.Hour)) {",
		Test: conforming("cleanup forgets only what has expired before, and counts it"),
	},
	{
		Name: "a full store forgets what has not expired",
		Why:  "duplicates would be handled again (contract 8.2)",
		File: "idempotent/memstore/markers.go",
		Old:  "	return s.forget(s.cfg.clock.Now())",
		New:  "	return s.forget(s.cfg.clock.Now().Add(time.Hour))",
		Test: remembering("TestFullStoreForgetsNothingBeforeItsTime"),
	},
	{
		Name: "what is being handled has no place",
		Why:  "the store would outgrow its bound, or could not remember a success (contract 8.2)",
		File: "idempotent/memstore/markers.go",
		Old:  "	if len(s.running)+len(s.markers) < s.cfg.MaxKeys {",
		New:  "	if len(s.markers) < s.cfg.MaxKeys {",
		Test: remembering("TestWhatIsBeingHandledHasItsPlace"),
	},
	{
		Name: "markers that expire later go first",
		Why:  "a full store would refuse messages although others have expired (contract 8.2)",
		File: "idempotent/memstore/markers.go",
		Old:  "e[i].expiresAt.Before(e[j].expiresAt)",
		New:  "e[i].expiresAt.After(e[j].expiresAt)",
		Test: remembering("TestStoreIsAMapWithExpiryTimes"),
	},
}
