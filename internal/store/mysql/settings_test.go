package mysql

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
)

// good returns the facts of a server that nothing speaks against.
func good(version string) facts {
	return facts{version: version, sqlMode: "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION", charset: "utf8mb4", readsUTC: true, variables: map[string]string{
		"INNODB_FLUSH_LOG_AT_TRX_COMMIT": "1", "SYNC_BINLOG": "1", "LOG_BIN": "ON"}}
}

// with returns facts that differ in some variables.
func (f facts) with(variables ...string) facts {
	f.variables = maps.Clone(f.variables)
	for i := 0; i < len(variables); i += 2 {
		f.variables[variables[i]] = variables[i+1]
	}
	return f
}

func vitess(comment string, shards int) facts {
	f := good("8.0.30-Vitess")
	f.comment, f.shards = comment, shards
	return f
}

func TestServerIsRefusedOrWarnedOf(t *testing.T) {
	const mysql, maria = "8.4.3", "10.11.19-MariaDB-0+deb12u1"
	ordered := func(f facts) facts { f.ordered = true; return f }
	lax, myISAM, local, latin := good(mysql), good(mysql), good(mysql), good(mysql)
	literal, keeping, disguised := good(mysql), good(mysql), vitess("Version: 24.0.4 (Git revision x)", 1)
	disguised.version = "8.0.34"
	literal.sqlMode, keeping.keepsOpen = "STRICT_TRANS_TABLES,NO_BACKSLASH_ESCAPES", true
	lax.sqlMode, myISAM.otherEngines, local.readsUTC, latin.charset = "NO_ENGINE_SUBSTITUTION", []string{"inbox_messages"}, false, "latin1"
	for name, each := range map[string]struct {
		facts    facts
		refused  string
		warnings []string
	}{
		"MySQL 8.0.19":              {facts: good("8.0.19")},
		"MySQL 8.0.18":              {facts: good("8.0.18"), refused: "MySQL before 8.0.19"},
		"MySQL 5.7":                 {facts: good("5.7.44-log"), refused: "MySQL before 8.0.19"},
		"MySQL 8.4":                 {facts: good(mysql)},
		"MySQL 9.7":                 {facts: ordered(good("9.7.4"))},
		"MySQL 10.0":                {facts: good("10.0.1")},
		"Percona":                   {facts: good("8.0.36-28")},
		"Aurora":                    {facts: good("8.0.32")},
		"MariaDB 10.6":              {facts: good("10.6.0-MariaDB")},
		"MariaDB 10.5":              {facts: good("10.5.29-MariaDB-log"), refused: "MariaDB before 10.6"},
		"MariaDB 10.11":             {facts: good(maria)},
		"MariaDB of a replica":      {facts: good("5.5.5-10.11.5-MariaDB")},
		"MariaDB 11.8":              {facts: ordered(good("11.8.2-MariaDB"))},
		"TiDB":                      {facts: good("8.0.11-TiDB-v8.5.1"), refused: "TiDB ignores FOR UPDATE SKIP LOCKED"},
		"Vitess 18":                 {facts: vitess("Version: 18.0.3 (Git revision x)", 1), refused: "Vitess before 19"},
		"Vitess":                    {facts: vitess("Version: 24.0.0 (Git revision x)", 1), warnings: []string{"limits of its tablets"}},
		"Vitess with shards":        {facts: vitess("Version: 24.0.0 (Git revision x)", 2), refused: "keyspace is sharded"},
		"Vitess in disguise":        {facts: disguised, warnings: []string{"limits of its tablets"}},
		"another engine":            {facts: myISAM, refused: "not kept by InnoDB"},
		"a lax sql_mode":            {facts: lax, refused: "sql_mode is not strict"},
		"no escapes":                {facts: literal, refused: "NO_BACKSLASH_ESCAPES"},
		"no autocommit":             {facts: keeping, refused: "autocommit is off"},
		"texts of another charset":  {facts: latin, refused: "charset=utf8mb4"},
		"rollback on timeout":       {facts: good(mysql).with("INNODB_ROLLBACK_ON_TIMEOUT", "ON"), refused: "innodb_rollback_on_timeout"},
		"statements in the log":     {facts: good(maria).with("BINLOG_FORMAT", "STATEMENT"), refused: "binlog_format"},
		"statements, but no log":    {facts: good(maria).with("BINLOG_FORMAT", "STATEMENT", "LOG_BIN", "OFF")},
		"times of another zone":     {facts: local, refused: "parseTime=true&loc=UTC"},
		"Galera":                    {facts: good(maria).with("WSREP_ON", "ON"), warnings: []string{"several nodes"}},
		"Galera, ordered":           {facts: ordered(good(maria).with("WSREP_ON", "ON")), refused: "which Ordered needs"},
		"Galera, off":               {facts: ordered(good(maria).with("WSREP_ON", "OFF"))},
		"several primaries":         {facts: good(mysql).with("GROUP_REPLICATION_GROUP_NAME", "G", "GROUP_REPLICATION_SINGLE_PRIMARY_MODE", "OFF"), warnings: []string{"several nodes"}},
		"one primary, ordered":      {facts: ordered(good(mysql).with("GROUP_REPLICATION_GROUP_NAME", "G", "GROUP_REPLICATION_SINGLE_PRIMARY_MODE", "ON"))},
		"no group, ordered":         {facts: ordered(good(mysql).with("GROUP_REPLICATION_GROUP_NAME", "", "GROUP_REPLICATION_SINGLE_PRIMARY_MODE", "OFF"))},
		"a lazy log":                {facts: good(mysql).with("INNODB_FLUSH_LOG_AT_TRX_COMMIT", "2"), warnings: []string{"innodb_flush_log_at_trx_commit"}},
		"a lazy binary log":         {facts: good(mysql).with("SYNC_BINLOG", "0"), warnings: []string{"sync_binlog"}},
		"small packets":             {facts: good(maria).with("MAX_ALLOWED_PACKET", "16777216"), warnings: []string{"max_allowed_packet"}},
		"large packets":             {facts: good(maria).with("MAX_ALLOWED_PACKET", "67108864")},
		"no binary log":             {facts: good(mysql).with("SYNC_BINLOG", "0", "LOG_BIN", "OFF")},
		"early semi-sync":           {facts: good(maria).with("RPL_SEMI_SYNC_MASTER_ENABLED", "ON", "RPL_SEMI_SYNC_MASTER_WAIT_POINT", "AFTER_COMMIT"), warnings: []string{"AFTER_SYNC"}},
		"early semi-sync of MySQL":  {facts: good(mysql).with("RPL_SEMI_SYNC_SOURCE_ENABLED", "ON", "RPL_SEMI_SYNC_SOURCE_WAIT_POINT", "AFTER_COMMIT"), warnings: []string{"AFTER_SYNC"}},
		"semi-sync":                 {facts: good(maria).with("RPL_SEMI_SYNC_MASTER_ENABLED", "ON", "RPL_SEMI_SYNC_MASTER_WAIT_POINT", "AFTER_SYNC")},
		"no semi-sync":              {facts: good(maria).with("RPL_SEMI_SYNC_MASTER_ENABLED", "OFF", "RPL_SEMI_SYNC_MASTER_WAIT_POINT", "AFTER_COMMIT")},
		"both lazy, on Galera":      {facts: good(maria).with("SYNC_BINLOG", "0", "INNODB_FLUSH_LOG_AT_TRX_COMMIT", "0", "WSREP_ON", "ON"), warnings: []string{"several nodes", "innodb_flush_log_at_trx_commit", "sync_binlog"}},
		"variables that are hidden": {facts: facts{version: mysql, sqlMode: "STRICT_ALL_TABLES", charset: "utf8mb4", readsUTC: true}},
	} {
		t.Run(name, func(t *testing.T) {
			warnings, err := decide(each.facts)
			if each.refused != "" {
				require.ErrorContains(t, err, each.refused)
				require.Empty(t, warnings)
				return
			}
			require.NoError(t, err)
			require.Len(t, warnings, len(each.warnings))
			for i, part := range each.warnings {
				require.Contains(t, warnings[i].Message, part)
			}
		})
	}
}

func TestShardsOfOtherKeyspacesDoNotCount(t *testing.T) {
	all := []string{"old-shop/0", "shop/-80", "shop/80-", "stock/0"}
	for target, shards := range map[string]int{"shop": 2, "shop@primary": 2, "stock": 1, "stock@primary": 1, "sho": 0} {
		require.Equal(t, shards, shardsOf(target, all), target)
	}
}
