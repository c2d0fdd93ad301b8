package main

// troubleMutants are of what a consumer does when brokers, members or accepts
// make trouble.
var troubleMutants = []mutant{
	{
		Name: "a broker that does not answer is asked for ever",
		Why:  "a frozen one that is named first would keep everybody from the group (contract 7.8)",
		File: "kafkaconsumer/group.go",
		Old:  "	c.bootstrap = (c.bootstrap + 1) % len(c.cfg.Brokers)\n",
		New:  "	c.bootstrap += 0\n",
		Test: hanging(consuming("TestBrokerThatNeverAnswersIsPassedBy")),
	},
	{
		Name: "a session does not wait for what is being accepted",
		Why:  "another member would accept the same records at the same time (contract 7.1)",
		File: "kafkaconsumer/session.go",
		Old:  "	workers.Wait()\n	drainedNow()\n",
		New:  "	drainedNow()\n",
		Test: consuming("TestRebalanceDuringASlowAcceptWaitsForItAndCommitsIt"),
	},
	{
		Name: "a rebalance abandons what is being accepted at once",
		Why:  "a group whose members come and go would accept nothing (contract 7.1)",
		File: "kafkaconsumer/session.go",
		Old:  "time.AfterFunc(c.cfg.DrainTimeout, s.cancelAccept)",
		New:  "time.AfterFunc(c.cfg.DrainTimeout/1000, s.cancelAccept)",
		Test: consuming("TestRebalanceDuringASlowAcceptWaitsForItAndCommitsIt"),
	},
	{
		Name: "a member that drains is silent",
		Why:  "the broker would take it for dead and refuse its last commit (contract 7.1)",
		File: "kafkaconsumer/session.go",
		Old:  "s.stayMember(drained) }()",
		New:  "<-drained.Done() }()",
		Test: consuming("TestRebalanceDuringASlowAcceptWaitsForItAndCommitsIt"),
	},
	{
		Name: "what was accepted last is not committed at the end",
		Why:  "each rebalance and each stop would redeliver it (contract 7.1)",
		File: "kafkaconsumer/session.go",
		Old:  "	helpers.Wait()\n	committer.flush()\n",
		New:  "	helpers.Wait()\n",
		Test: consuming("TestStopFinishesAndCommitsTheRunningAccept"),
	},
	{
		Name: "a failed commit ends no session",
		Why:  "nothing would be committed any more, and a crash redeliver everything since (contract 7.1)",
		File: "kafkaconsumer/session.go",
		Old:  "		if !committer.run(stopCommitting) {\n			s.end()\n		}",
		New:  "		committer.run(stopCommitting)",
		Test: hanging(consuming("TestInjectedGroupErrorsAreSurvived/commit/22")),
	},
	{
		Name: "an accept that was abandoned counts as accepted",
		Why:  "its records would be lost (contract 7.1)",
		File: "kafkaconsumer/worker.go",
		Old:  "			if ctx.Err() != nil {\n				return false\n			}\n			w.trouble.Begin",
		New:  "			if ctx.Err() != nil {\n				results = make([]envelope.Result, len(received))\n				break\n			}\n			w.trouble.Begin",
		Test: consuming("TestAcceptThatOutlastsTheDrainIsAbandonedAndRedelivered"),
	},
	{
		Name: "what is fetched is committed",
		Why:  "a crash before it is accepted would lose it (contract 7.1)",
		File: "kafkaconsumer/partition.go",
		Old:  "	return p.accepted, p.accepted > p.committed && ",
		New:  "	return p.next, p.next > p.committed && ",
		Test: hanging(consuming("TestFailedAcceptIsRetriedWithTheSameRecordsAndNothingBehindThem")),
	},
}
