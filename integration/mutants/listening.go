package main

import "time"

func polling(run string) test {
	return test{Package: "./processor", Run: run, Timeout: 45 * time.Second}
}

func announcing(run string) test {
	return test{Package: "./internal/store", Run: run, Timeout: 45 * time.Second}
}

func pooling(run string) test {
	return test{Module: "integration", Package: "./pooler", Run: run, Timeout: 90 * time.Second}
}

// listeningMutants are of polling and of what processes tell each other.
var listeningMutants = []mutant{
	{
		Name: "a worker that listens again does not look",
		Why:  "what was announced while it did not listen would wait for the next poll (contract 4.7)",
		File: "processor/listen.go",
		Old:  "	p.wakeup.wake()\n	for {\n",
		New:  "	for {\n",
		Test: polling("^TestWorkerLooksOnceItListensAgain$"),
	},
	{
		Name: "a dead connection is listened to for ever",
		Why:  "nothing would be heard again, and health would say nothing of it (contract 4.7)",
		File: "internal/store/postgres_listener.go",
		Old:  "heard, err = nil, l.ping(ctx, quiet)",
		New:  "heard, err = nil, nil",
		Test: polling("^TestDeadConnectionOfTheListenerIsNoticed$"),
	},
	{
		Name: "nobody looks whose session listens",
		Why:  "behind a pooler in transaction mode sessions of the application would be sent every notification for ever (contract 3.7, 4.7)",
		File: "internal/store/postgres_listen.go",
		Old:  "err = p.alone(ctx, conn); err == nil",
		New:  "err == nil",
		Test: pooling("^TestListenThroughAPoolerInTransactionModeLeavesNothingBehind$"),
	},
	{
		Name: "the listener goes on listening at its end",
		Why:  "behind a pooler whoever gets the session next would be sent every notification for ever (contract 3.7, 4.7)",
		File: "internal/store/postgres_listener.go",
		Old:  "		l.end(ctx)\n",
		New:  "		_ = l.end\n",
		Test: pooling("^TestListenThroughAPoolerInSessionModeLeavesNothingBehind$"),
	},
	{
		Name: "accepts announce what they have not added",
		Why:  "every redelivery would wake every worker (contract 4.7)",
		File: "internal/store/postgres_listen.go",
		Old:  "FROM unclaimed WHERE keys IS NOT NULL AND ",
		New:  "FROM unclaimed WHERE ",
		Test: announcing("^TestAcceptsAnnounceOnceWhatTheyAdd$"),
	},
	{
		Name: "who accepts in a transaction does not hear it",
		Why:  "without a call of Wake its own worker would wait for the poll (contract 4.1, 4.7)",
		File: "internal/store/postgres_accept.go",
		Old:  "	toAll.origin.String = \"\"\n",
		New:  "",
		Test: polling("^TestListenBringsWhatOtherProcessesAcceptAtOnce$"),
	},
	{
		Name: "an announcement names however many handlers",
		Why:  "PostgreSQL refuses a payload of 8,000 bytes, and the accept with it (contract 4.7)",
		File: "internal/store/postgres_listen.go",
		Old:  "octet_length(keys::text) < 7900",
		New:  "octet_length(keys::text) < 79000",
		Test: announcing("^TestAnnouncementOfMoreKeysThanFitIsForAll$"),
	},
	{
		Name: "a stop keeps to itself what it releases",
		Why:  "what could run elsewhere at once would wait for a poll (contract 4.7, 5.8)",
		File: "processor/stop.go",
		Old:  "	p.announceReleased(a.hard)\n",
		New:  "",
		Test: polling("^TestStopTellsOtherWorkersOfWhatItReleases$"),
	},
	{
		Name: "a poll that finds work is as late the next time",
		Why:  "without Listen each message of another process would wait for PollingInterval (contract 5.1)",
		File: "processor/polling.go",
		Old:  "	if found {\n",
		New:  "	if found && p.longest < 0 {\n",
		Test: test{Package: "./processor", Run: "^TestPollsComeSoonerWhileAnotherProcessAccepts$", Timeout: 90 * time.Second},
	},
	{
		Name: "polls stay as frequent as they once were",
		Why:  "an idle worker would ask the database ten times a second (contract 5.1)",
		File: "processor/polling.go",
		Old:  "		p.wait *= 2\n",
		New:  "		p.wait *= 1\n",
		Test: polling("^TestPollingComesSoonerOnlyForWorkNobodyToldOf$"),
	},
	{
		Name: "work that was told of counts as found",
		Why:  "a worker whose own process accepts would poll ten times a second (contract 5.1)",
		File: "processor/polling.go",
		Old:  "	delete(p.asked, handlerKey)\n",
		New:  "",
		Test: polling("^TestPollingComesSoonerOnlyForWorkNobodyToldOf$"),
	},
}
