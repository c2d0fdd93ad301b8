package main

import "time"

// secured are tests of the module integration; those of TestSecuredBroker
// start a broker of their own.
func secured(run string) test {
	return test{Module: "integration", Package: "./kafka", Run: run, Timeout: 3 * time.Minute}
}

var securityMutants = []mutant{
	{
		Name: "a PLAIN password is sent without TLS unasked",
		Why:  "whoever is on the way to the broker would learn the password (contract 7.5)",
		File: "kafkaconsumer/validate.go",
		Old:  "mechanism.Name() == \"PLAIN\" && c.TLS == nil && !c.SASL.AllowWithoutTLS {",
		New:  "mechanism.Name() == \"PLAIN\" && false {",
		Test: test{Package: "./kafkaconsumer", Run: "^TestPlainPasswordsAreSentWithoutTLSOnlyIfAllowedByName$"},
	},
	{
		Name: "the application's role may delete audit rows",
		Why:  "who has the application's password could cover its tracks (contract 11.3)",
		File: "internal/store/grants.go",
		Old:  "{n.Audit(), `SELECT, INSERT`,",
		New:  "{n.Audit(), `SELECT, INSERT, DELETE`,",
		Test: commanding("^TestRolesCanDoNothingElse$"),
	},
	{
		Name: "each denied request has an audit row",
		Why:  "who may not do anything could fill the database (contract 11.3)",
		File: "ops/denied.go",
		Old:  "if !powerOfTen(count.Requests) {",
		New:  "if false {",
		Test: test{Package: "./ops", Run: "^TestDeniedRequestsAreAuditedAndDoNotFillTheTable$/^sqlite$"},
	},
	{
		Name: "a request that the role does not allow has no audit row",
		Why:  "nobody would learn who tries doors (contract 11.3)",
		File: "dashboard/request.go",
		Old:  "	case who.Role < found.role:\n		q.denied(q.actor(), found.name())\n",
		New:  "	case who.Role < found.role:\n",
		Test: test{Package: "./dashboard", Run: "^TestRequestsOfThoseWhoMayNotAreAudited$/^sqlite$"},
	},
	{
		Name: "the audit tells the role that a session has taken",
		Why:  "who has logged in as somebody else could not be told (contract 11.3)",
		File: "internal/store/audit.go",
		Old:  "$6::timestamptz, session_user)",
		New:  "$6::timestamptz, current_user)",
		Test: commanding("^TestRolesCanDoTheirWorkWithWhatIsGranted$"),
	},
	{
		Name: "a SQLite file may be read by everybody",
		Why:  "every user of the machine could read the messages",
		File: "internal/sqlitefile/sqlitefile.go",
		Old:  "os.O_WRONLY, 0o600)",
		New:  "os.O_WRONLY, 0o644)",
		Test: test{Package: "./fxtest", Run: "^TestDatabaseIsForItsUserAlone$"},
	},
	{
		Name: "the reader's role may read contents",
		Why:  "contents could be read without an audit row (contract 11.3)",
		File: "internal/store/grants.go",
		Old:  "\"source\", \"content_type\", \"received_at\")",
		New:  "\"source\", \"content\", \"content_type\", \"received_at\")",
		Test: commanding("^TestRolesCanDoNothingElse$"),
	},
	{
		Name: "TLS is configured and not used",
		Why:  "passwords and records would travel in plain (contract 7.5)",
		File: "kafkaconsumer/network.go",
		Old:  "if err != nil || n.cfg.TLS == nil {",
		New:  "if err != nil || n.cfg.TLS == nil || n.cfg.SASL.Mechanism == \"\" {",
		Test: secured("^TestTLSIsUsedOnEveryConnection$"),
	},
	{
		Name: "the broker's certificate is not verified",
		Why:  "anybody could play the broker (contract 7.5)",
		File: "kafkaconsumer/network.go",
		Old:  "		cfg.ServerName = host\n",
		New:  "		cfg.ServerName, cfg.InsecureSkipVerify = host, true\n",
		Test: test{Package: "./kafkaconsumer", Run: "^TestFailedHandshakesLeaveNoConnectionOpen$"},
	},
	{
		Name: "a failed handshake leaves its connection open",
		Why:  "the process would run out of files while an operator looks for the certificate (contract 7.8)",
		File: "kafkaconsumer/network.go",
		Old:  "		_ = c.Close()\n		return nil, err\n	}\n	return encrypted, nil",
		New:  "		return nil, err\n	}\n	return encrypted, nil",
		Test: test{Package: "./kafkaconsumer", Run: "^TestFailedHandshakesLeaveNoConnectionOpen$"},
	},
	{
		Name: "passwords are printed",
		Why:  "they would be in logs (contract 7.5)",
		File: "kafkaconsumer/secret.go",
		Old:  "	_, _ = io.WriteString(f, s.String()) // whoever prints learns of his own errors",
		New:  "	_, _ = io.WriteString(f, s.String()+s.Password)",
		Test: test{Package: "./kafkaconsumer", Run: "^TestPasswordsAreNeverPrinted$"},
	},
	{
		Name: "an error quotes the password",
		Why:  "it would be in logs (contract 7.5)",
		File: "kafkaconsumer/validate.go",
		Old:  "allowed are characters that SASLprep (RFC 4013) does not prohibit\", s.Mechanism)",
		New:  "allowed are characters that SASLprep (RFC 4013) does not prohibit: %w\", s.Mechanism, err)",
		Test: test{Package: "./kafkaconsumer", Run: "^TestErrorsOfTheConfigurationShowNoPassword$"},
	},
	{
		Name: "an error quotes the password in a broker's address",
		Why:  "it would be in logs (contract 7.5)",
		File: "kafkaconsumer/validate.go",
		Old:  "with a port of 1 to 65535\", withoutUser(broker))",
		New:  "with a port of 1 to 65535\", broker)",
		Test: test{Package: "./kafkaconsumer", Run: "^TestErrorsOfTheConfigurationShowNoPassword$"},
	},
	{
		Name: "a missing right halts the partition",
		Why:  "it would stay halted when the right comes back (contract 7.5, 7.8)",
		File: "kafkaconsumer/fetch.go",
		Old:  "case errors.Is(err, kafka.InvalidMessage):",
		New:  "case errors.Is(err, kafka.InvalidMessage), errors.Is(err, kafka.TopicAuthorizationFailed):",
		Test: secured("^TestFetchErrorsAreRetriedWhereTheyHappened$/^29$"),
	},
	{
		Name: "a topic that may not be seen silences the others",
		Why:  "their records would wait for another team's rights (contract 7.5)",
		File: "kafkaconsumer/group.go",
		Old:  "		case errors.Is(topic.Error, kafka.TopicAuthorizationFailed): // also if it does not exist\n			denied = append(denied, topic.Name)\n",
		New:  "",
		Test: secured("^TestSecuredBroker$/^all$/^a_topic_that_may_not_be_seen_"),
	},
	{
		Name: "a member joins for ever with a topic that is denied to it",
		Why:  "the group's leader is refused all topics for one: the others would wait (contract 7.5)",
		File: "kafkaconsumer/group.go",
		Old:  "			if errors.Is(err, kafka.TopicAuthorizationFailed) {\n",
		New:  "			if errors.Is(err, kafka.ClusterAuthorizationFailed) {\n",
		Test: secured("^TestSecuredBroker$/^all$/^a_right_to_one_topic_"),
	},
	{
		Name: "a commit on a lost connection is given up",
		Why:  "each end of a SASL session would deliver records again (contract 7.5)",
		File: "kafkaconsumer/commit.go",
		Old:  "	if lost(err) {\n",
		New:  "	if lost(err) && c.failed {\n",
		Test: secured("^TestCommitWhoseConnectionIsLostIsMadeByAnother$"),
	},
}
