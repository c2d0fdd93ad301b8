package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorm-inbox/inbox/internal/routine"
	"github.com/gorm-inbox/inbox/internal/store"
	"github.com/gorm-inbox/inbox/internal/store/base"
)

// This file changes the layout of the tables while programs use them. New tables are filled beside those in use, which
// keep them the same by triggers. Then one statement gives all of them other names. What was interrupted before that is
// taken back by the next call, and begins anew.

// The tables in the order in which they are always named: messages and statuses. The next ones are being filled, and
// the former ones are to be dropped.
var (
	plainTables  = []string{"{plain messages}", "{plain statuses}"}
	partedTables = []string{"{parted messages}", "{parted statuses}"}
	nextTables   = []string{"{own next_messages}", "{own next_handler_statuses}"}
	formerTables = []string{"{own former_messages}", "{own former_handler_statuses}"}
	nextViews    = []string{"{own next_messages_view}", "{own next_handler_statuses_view}"}
	formerViews  = []string{"{own former_messages_view}", "{own former_handler_statuses_view}"}
	slimTables   = []string{"{message ids}", "{lane holders}"}
	numberOf     = []string{"number", "message_number"}
)

// slimSQL makes the slim tables. The first number is that of a partition of its own.
var slimSQL = []string{`
CREATE TABLE {message ids} (
	id varbinary(800) NOT NULL, namespace varbinary(800) NOT NULL, number bigint NOT NULL AUTO_INCREMENT,
	PRIMARY KEY (id, namespace), UNIQUE KEY number (number)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='` + sideComment + `' AUTO_INCREMENT=%d`, `
CREATE TABLE {lane holders} (
	lane_handler bigint NOT NULL, lane_key bigint NOT NULL, PRIMARY KEY (lane_handler, lane_key)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='` + sideComment + `'`}

// laneTriggers let a lane have one claimed row in the partitioned layout.
var laneTriggers = []string{`
CREATE TRIGGER {own keep_lanes} AFTER UPDATE ON {own next_handler_statuses} FOR EACH ROW
IF NEW.holds_lane <> OLD.holds_lane THEN
	IF NEW.holds_lane THEN
		INSERT INTO {lane holders} (lane_handler, lane_key) VALUES (NEW.lane_handler, NEW.lane_key);
	ELSE
		DELETE FROM {lane holders} WHERE lane_handler = OLD.lane_handler AND lane_key = OLD.lane_key;
	END IF;
END IF`, `
CREATE TRIGGER {own leave_lanes} AFTER DELETE ON {own next_handler_statuses} FOR EACH ROW
IF OLD.holds_lane THEN
	DELETE FROM {lane holders} WHERE lane_handler = OLD.lane_handler AND lane_key = OLD.lane_key;
END IF`}

// These triggers are for those who delete messages by themselves. The second one needs the tables' last names, so it is
// made a moment after the change.
const (
	forgetTriggerSQL = `
CREATE TRIGGER {own forget} AFTER DELETE ON {own next_messages} FOR EACH ROW
DELETE FROM {message ids} WHERE id = OLD.id AND namespace = OLD.namespace AND number = OLD.number`
	cascadeTriggerSQL = `
CREATE TRIGGER IF NOT EXISTS {own cascade} AFTER DELETE ON {parted messages} FOR EACH ROW
DELETE s FROM {parted statuses} s FORCE INDEX (message) WHERE s.message_number = OLD.number`
)

// viewsSQL make the views for people. What cleanup has forgotten is not in them, unless it is run again.
var viewsSQL = []string{`
CREATE ALGORITHM=TEMPTABLE VIEW {own next_messages_view} AS SELECT m.* FROM {parted messages} m
JOIN {message ids} i ON i.number = m.number AND i.id = m.id AND i.namespace = m.namespace`, `
CREATE ALGORITHM=TEMPTABLE VIEW {own next_handler_statuses_view} AS SELECT s.* FROM {parted statuses} s
WHERE s.completed_at IS NULL OR EXISTS (SELECT 1 FROM {message ids} i WHERE i.number = s.message_number)`}

// These statements read the dictionary.
const (
	markedSQL = `
SELECT t.table_comment LIKE '` + sideComment + `%' OR EXISTS (SELECT 1 FROM information_schema.triggers g
	WHERE g.event_object_schema = t.table_schema AND g.event_object_table = t.table_name AND g.trigger_name LIKE CONCAT(?3, '%'))
FROM information_schema.tables t WHERE t.table_schema = COALESCE(?1, DATABASE()) AND t.table_name = ?2 AND t.table_type = 'BASE TABLE'`

	columnsSQL = `
SELECT CONCAT('"', column_name, '"') FROM information_schema.columns
WHERE table_schema = COALESCE(?1, DATABASE()) AND table_name = ?2 AND COALESCE(generation_expression, '') = '' ORDER BY ordinal_position`

	triggersSQL = `
SELECT trigger_name FROM information_schema.triggers
WHERE trigger_schema = COALESCE(?1, DATABASE()) AND event_object_table IN ({list ?2}) ORDER BY trigger_name`

	referencesSQL = `
SELECT DISTINCT CONCAT('foreign key ', constraint_name) FROM information_schema.key_column_usage
WHERE referenced_table_schema = COALESCE(?1, DATABASE()) AND referenced_table_name IN ({list ?2}) AND table_name NOT IN ({list ?2})
	OR table_schema = COALESCE(?1, DATABASE()) AND table_name IN ({list ?2}) AND referenced_table_name IS NOT NULL
		AND referenced_table_name NOT IN ({list ?2})`

	// privilegesSQL reads who has rights on a table, also of columns. The standard's views would show an account that may
	// read these two tables no rights of others.
	privilegesSQL = `
SELECT user, host, table_priv, '' FROM mysql.tables_priv WHERE db = COALESCE(?1, DATABASE()) AND table_name = ?2
UNION
SELECT user, host, column_priv, CONCAT(' ("', column_name, '")') FROM mysql.columns_priv
WHERE db = COALESCE(?1, DATABASE()) AND table_name = ?2`
)

// rightsToGive are those of a table that its partitioned one needs: who may change the table itself does not thereby
// change the other.
var rightsToGive = []string{"Select", "Insert", "Update", "Delete", "References", "Show view", "Trigger"}

// These statements copy messages in the order of their numbers, with shared locks, so that what changes them waits, and
// its trigger then changes the copy. %[1]s is the new table, %[2]s are the columns, and %[3]s is the table with
// its index.
const (
	nextSQL = `
SELECT number, LENGTH(content) + LENGTH(serialized_properties) FROM %s FORCE INDEX (PRIMARY) WHERE number > ?1 ORDER BY number LIMIT 200`
	copyRangeSQL = `
INSERT INTO %[1]s (%[2]s) SELECT %[2]s FROM %[3]s WHERE x.%[4]s > ?1 AND x.%[4]s <= ?2
	AND (SELECT 1 FROM %[1]s c WHERE c.%[5]s) IS NULL LOCK IN SHARE MODE`
	holdersSQL = `
INSERT INTO {lane holders} (lane_handler, lane_key) SELECT lane_handler, lane_key FROM {plain statuses} FORCE INDEX (message)
WHERE message_number > ?1 AND message_number <= ?2 AND holds_lane = 1 LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE lane_key = {lane holders}.lane_key`
)

// ErrNoPartitions says that the server cannot have the partitioned layout. MariaDB before 11.4 reads all rows to
// exchange a table with a partition, and then waits for itself under LOCK TABLES. MySQL before 8.4 is not tested: its
// earlier releases unlock rows of the wrong partition (bug 33724166).
var ErrNoPartitions = errors.New("partitions need MySQL 8.4 or later or MariaDB 11.4 or later, and a single server that writes")

// patience is how long a change of the layout waits for its next attempt.
const patience = 10 * time.Second

// patiently runs a change that may not get its locks, until it does or ctx ends.
func (s session) patiently(statement string) error {
	for {
		err := s.exec(statement)
		if err == nil || !errors.Is(busy(err), store.ErrPartitionsBusy) || !routine.Sleep(s.ctx, patience) {
			return store.WithContextError(s.ctx, err)
		}
	}
}

// isMarked reports whether there is a table with this name. It fails if the table does not have our mark.
func (s session) isMarked(table string) (bool, error) {
	schema, name := s.table(s.own(table))
	_, trigger := s.table(s.own("{own copy_}"))
	marked, err := store.Query(s.ctx, s.pool, markedSQL, store.Value[bool], schema, name, trigger)
	if err == nil && len(marked) > 0 && !marked[0] {
		err = fmt.Errorf("table %s is not the inbox's: rename it", name)
	}
	return len(marked) > 0, err
}

// dropSide drops tables that have our mark, the last first.
func (s session) dropSide(tables ...string) error {
	for _, table := range slices.Backward(tables) {
		exists, err := s.isMarked(table)
		if err == nil && exists {
			err = s.patiently(`DROP TABLE ` + table)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s session) columns(table string) (string, error) {
	schema, name := s.table(s.own(table))
	names, err := store.Query(s.ctx, s.pool, columnsSQL, store.Value[string], schema, name)
	return strings.Join(names, ", "), err
}

// tableText is what follows the name in the statement that makes a table: as it is but without partitions, or for the
// other layout without partitions. counter is the next number that the table gives.
type tableText struct {
	plain, other string
	counter      int64
}

var (
	counterOf   = regexp.MustCompile(` AUTO_INCREMENT=(\d+)`)
	numbered    = regexp.MustCompile("(`number` bigint\\S* NOT NULL)( AUTO_INCREMENT)?")
	foreignKey  = regexp.MustCompile(`,\s*CONSTRAINT [^,]* FOREIGN KEY .* ON DELETE CASCADE`)
	generated   = regexp.MustCompile("(?m)^(\\s*`(due_at|parked|unpublished|failing)` \\S+) GENERATED ALWAYS AS .* STORED")
	expressions = map[string]string{
		"due_at":      "CASE WHEN completed_at IS NULL THEN CASE WHEN is_poisoned = 0 THEN CASE WHEN is_waiting = 0 THEN COALESCE(next_attempt_at, created_at) END END END",
		"parked":      "CASE WHEN CASE WHEN completed_at IS NULL THEN is_poisoned END = 1 THEN 1 WHEN is_waiting = 1 THEN 2 END",
		"unpublished": "CASE WHEN completed_at IS NULL THEN CASE WHEN is_poisoned = 1 THEN CASE WHEN published_at IS NULL THEN 1 END END END",
		"failing":     "CASE WHEN completed_at IS NULL THEN CASE WHEN is_poisoned = 1 THEN fingerprint WHEN error_count + abandoned_count + interrupted_count > 0 THEN fingerprint END END",
	}
)

// createText reads a table. Its keys are unique with the number alone in the partitioned layout. The expressions of
// generated columns there have no AND and OR: MariaDB would not take two such tables for alike to exchange them.
func (s session) createText(table string) (t tableText, err error) {
	texts, err := store.Query(s.ctx, s.pool, s.own(`SHOW CREATE TABLE `+table), func(rows *sql.Rows, text *string) error {
		return rows.Scan(new(string), text)
	})
	if err != nil {
		return t, err
	}
	_, body, _ := strings.Cut(texts[0], "(")
	body, _, parted := strings.Cut(body, "PARTITION BY")
	if parted {
		body = strings.TrimSuffix(strings.TrimSpace(body), "/*!50100")
	}
	body, _, _ = strings.Cut(body, " COMMENT='"+sideComment)
	if found := counterOf.FindStringSubmatch(body); found != nil {
		t.counter, _ = strconv.ParseInt(found[1], 10, 64)
		body = strings.Replace(body, found[0], "", 1)
	}
	mark := ` COMMENT='` + sideComment + `'`
	body = ` (` + strings.TrimSpace(body)
	t.plain = body + mark
	keys := []string{"UNIQUE KEY `by_id` (", "KEY `by_id` (", "UNIQUE KEY `lane_holder` (", "KEY `lane_holder` (",
		"PRIMARY KEY (`id`)", "PRIMARY KEY (`id`,`message_number`)"}
	if parted {
		slices.Reverse(keys)
		body = numbered.ReplaceAllString(body, "$1 AUTO_INCREMENT")
	} else {
		body = foreignKey.ReplaceAllString(numbered.ReplaceAllString(body, "$1"), "")
		body = generated.ReplaceAllStringFunc(body, func(column string) string {
			found := generated.FindStringSubmatch(column)
			return found[1] + " GENERATED ALWAYS AS (" + expressions[found[2]] + ") STORED"
		})
	}
	t.other = strings.NewReplacer(keys...).Replace(body) + mark
	return t, nil
}

// grant gives who uses the tables with the plain names the same rights on those of the partitioned layout, and who
// accepts or deletes messages those on the IDs.
func (s session) grant() error {
	for i, table := range plainTables {
		type rights struct{ user, host, of, column string }
		schema, name := s.table(s.own(table))
		all, err := store.Query(s.ctx, s.pool, privilegesSQL, func(rows *sql.Rows, r *rights) error {
			return rows.Scan(&r.user, &r.host, &r.of, &r.column)
		}, schema, name)
		if err != nil {
			return fmt.Errorf("%w: Partition needs SELECT on mysql.tables_priv and mysql.columns_priv, "+
				"to give other accounts their rights on the new tables", err)
		}
		var grants []string
		for _, r := range all {
			to := quoted(r.user)
			if r.host != "" { // a role of MariaDB has none
				to += "@" + quoted(r.host)
			}
			if i == 0 && r.of != "" {
				grants = append(grants, `SELECT ON {message ids} TO `+to)
			}
			for right := range strings.SplitSeq(r.of, ",") {
				if slices.Contains(rightsToGive, right) {
					grants = append(grants, right+r.column+` ON `+partedTables[i]+` TO `+to)
				}
				if i == 0 && (right == "Insert" || right == "Delete") {
					grants = append(grants, right+` ON {message ids} TO `+to)
				}
			}
		}
		for _, grant := range grants {
			if err := s.exec(`GRANT ` + grant); err != nil {
				return err
			}
		}
	}
	return nil
}

// refuse returns an error if something depends on tables that would be dropped with them.
func (s session) refuse(tables []string) error {
	var names []any
	var schema any
	for _, table := range tables {
		of, name := s.table(s.own(table))
		schema, names = of, append(names, name)
	}
	found, err := store.Query(s.ctx, s.pool, referencesSQL, store.Value[string], schema, listOf(names))
	if err != nil {
		return err
	}
	triggers, err := store.Query(s.ctx, s.pool, triggersSQL, store.Value[string], schema, listOf(names))
	_, own := s.table(s.own("{own }"))
	for _, trigger := range triggers {
		switch name := strings.TrimPrefix(trigger, own); {
		case slices.Contains([]string{"keep_lanes", "leave_lanes", "forget", "cascade"}, name) || strings.HasPrefix(name, "copy_"):
		default:
			found = append(found, "trigger "+trigger)
		}
	}
	if err == nil && len(found) > 0 {
		err = fmt.Errorf("drop these first, they would be dropped with the tables: %s", strings.Join(found, ", "))
	}
	return err
}

// undo takes back what an interrupted change has left.
func (s session) undo(tables []string) error {
	if err := s.dropSide(formerTables...); err != nil {
		return err
	}
	// INSERT goes before DELETE: a message that is deleted and comes again meanwhile would still be in the copy, which
	// would refuse it.
	for i := mirrors - 1; i >= 0; i-- {
		if err := s.patiently(`DROP TRIGGER IF EXISTS {own copy_` + strconv.Itoa(i) + `}`); err != nil {
			return err
		}
	}
	views := slices.Concat(nextViews, formerViews)
	side := nextTables
	if tables[0] == plainTables[0] {
		views, side = append(views, partedTables...), slices.Concat(slimTables, nextTables)
	}
	if err := s.patiently(`DROP VIEW IF EXISTS ` + strings.Join(views, ", ")); err != nil {
		return err
	}
	return s.dropSide(side...)
}

// mirrors is how many triggers mirror makes at most.
const mirrors = 7

// mirror makes triggers that change next tables as those in use are changed: for each table DELETE first and INSERT
// last. {message ids} has the IDs of messages in the plain tables, and what is deleted from it is not in the next plain
// tables.
func (s session) mirror(tables []string, parted bool) error {
	n := 0
	trigger := func(when, table string, statements ...string) error {
		n++
		return s.patiently(`CREATE TRIGGER {own copy_` + strconv.Itoa(n-1) + `} AFTER ` + when + ` ON ` + table + ` FOR EACH ROW BEGIN ` +
			strings.Join(statements, "; ") + `; END`)
	}
	remember, forget := `DO 0`, `DO 0`
	remove := func(number string) (deletes []string) {
		for _, i := range []int{1, 0} {
			deletes = append(deletes, `DELETE FROM `+nextTables[i]+` WHERE `+numberOf[i]+` = `+number)
		}
		return deletes
	}
	if parted {
		if err := trigger("DELETE", "{message ids}", remove("OLD.number")...); err != nil {
			return err
		}
	} else {
		remember = `INSERT INTO {message ids} (id, namespace, number) VALUES (NEW.id, NEW.namespace, NEW.number)`
		forget = `DELETE FROM {message ids} WHERE id = OLD.id AND namespace = OLD.namespace`
	}
	for i, table := range tables {
		columns, err := s.columns(table)
		if err != nil {
			return err
		}
		names := strings.Split(columns, ", ")
		sets := make([]string, len(names))
		for k, name := range names {
			sets[k] = name + ` = NEW.` + name
		}
		key := []string{`number = OLD.number`, `id = OLD.id AND message_number = OLD.message_number`}[i]
		deletes := [][]string{append(remove("OLD.number"), forget), {`DELETE FROM ` + nextTables[1] + ` WHERE ` + key}}[i]
		inserts := []string{`INSERT INTO ` + nextTables[i] + ` (` + columns + `) VALUES (NEW.` + strings.Join(names, ", NEW.") + `)`}
		if i == 0 {
			inserts = append(inserts, remember)
		}
		err = trigger("DELETE", table, deletes...)
		if err == nil {
			err = trigger("UPDATE", table, `UPDATE `+nextTables[i]+` SET `+strings.Join(sets, ", ")+` WHERE `+key)
		}
		if err == nil {
			err = trigger("INSERT", table, inserts...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill copies what was there before the triggers: from partitions what is remembered.
func (s session) fill(tables []string, parted bool) error {
	from := []string{tables[0] + ` x FORCE INDEX (PRIMARY)`, tables[1] + ` x FORCE INDEX (message)`}
	if parted {
		for i := range from {
			from[i] = `{message ids} i FORCE INDEX (number) STRAIGHT_JOIN ` + from[i] + ` ON x.` + numberOf[i] + ` = i.number`
		}
	}
	same := []string{`number = x.number`, `message_number = x.message_number AND c.handler_key = x.handler_key`}
	var statements []string
	for i, table := range tables {
		columns, err := s.columns(table)
		if err != nil {
			return err
		}
		columns = `x.` + strings.ReplaceAll(columns, ", ", ", x.")
		insert := strings.Replace(fmt.Sprintf(copyRangeSQL, nextTables[i], columns, from[i], numberOf[i], same[i]), columns,
			strings.ReplaceAll(columns, "x.", ""), 1)
		statements = append(statements, insert)
	}
	if !parted {
		statements = append(statements, fmt.Sprintf(copyRangeSQL, "{message ids}", "id, namespace, number", from[0], numberOf[0], same[0]), holdersSQL)
	}
	for after := int64(-1); ; {
		until := after
		// All of it in a transaction: a proxy might send a read by itself to a replica, which lags.
		err := s.within(func() (err error) {
			if until, err = s.batchEnd(tables[0], after); err != nil || until == after {
				return err
			}
			for _, statement := range statements {
				if _, err := store.Exec(s.ctx, s.pool, s.own(statement), after, until); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || until == after {
			return err
		}
		after = until
	}
}

// batchEnd returns the last number of the next batch of messages, or after if there are none.
func (s session) batchEnd(table string, after int64) (until int64, err error) {
	until = after
	bytes := int64(0)
	_, err = store.Query(s.ctx, s.pool, s.own(fmt.Sprintf(nextSQL, table)), func(rows *sql.Rows, _ *struct{}) error {
		var number, size int64
		err := rows.Scan(&number, &size)
		if bytes == 0 || bytes+size <= maxKeptBytes {
			until, bytes = number, bytes+max(size, 1)
		} else {
			bytes = maxKeptBytes + 1
		}
		return err
	}, after)
	return until, err
}

// repartition changes the layout unless another call does.
func (s *Store) repartition(ctx context.Context, change func(session) error) error {
	f, err := s.facts(ctx)
	if err != nil {
		return err
	}
	tooOld := f.isMariaDB() && f.before(11, 4, 0) || f.isMySQL() && f.before(8, 4, 0)
	if tooOld || f.isVitess() || f.isTiDB() || f.severalWriters() {
		return ErrNoPartitions
	}
	if err = s.KeepSchema(ctx, s.Pool(ctx)); err == nil {
		err = s.alone(ctx, change)
	}
	return errors.Join(err, s.refreshLayout(context.WithoutCancel(ctx), s.Pool(ctx)))
}

// Partition gives the tables the partitioned layout, while programs use them. If they have it, it only grants rights
// again, and takes back what Unpartition has begun. It waits for locks until ctx ends, and keeps others waiting for a
// second for each of them, every ten seconds.
func (s *Store) Partition(ctx context.Context) error {
	return s.repartition(ctx, func(own session) error { return own.orUndo(own.partition(), plainTables) })
}

// orUndo takes back a change that has failed, because its triggers would go on to double all writes. If the failure
// is that ctx has ended, or the connection, the next call does so.
func (s session) orUndo(failure error, tables []string) error {
	if failure == nil || s.ctx.Err() != nil {
		return failure
	}
	partitioned, err := s.hasTable(s.ctx, s.pool, partedTables[0])
	if err != nil || partitioned != (tables[0] == partedTables[0]) {
		return errors.Join(failure, err) // the change is done, but for what it leaves
	}
	return errors.Join(failure, base.Doing("take back what was begun", s.undo(tables)))
}

func (s session) partition() error {
	if partitioned, err := s.hasTable(s.ctx, s.pool, partedTables[0]); err != nil || partitioned {
		if err == nil {
			err = s.grant()
		}
		if err == nil {
			err = s.finish()
		}
		return err
	}
	if err := s.refuse(plainTables); err != nil {
		return err
	}
	if err := base.Doing("take back what was begun", s.undo(plainTables)); err != nil {
		return err
	}
	texts := make([]tableText, 2)
	for i, table := range plainTables {
		var err error
		if texts[i], err = s.createText(table); err != nil {
			return err
		}
	}
	first := (texts[0].counter/slotSize + 1) * slotSize
	statements := []string{fmt.Sprintf(slimSQL[0], first), slimSQL[1]}
	for i, text := range texts {
		statements = append(statements, fmt.Sprintf("CREATE TABLE %s%s PARTITION BY RANGE (%s) (PARTITION kept VALUES LESS THAN (1), %s, %s)",
			nextTables[i], text.other, numberOf[i], definition(first-slotSize, first), definition(first, first+slotSize)))
	}
	statements = append(append(statements, laneTriggers...), forgetTriggerSQL)
	for i, table := range partedTables { // the next views need tables of these names
		statements = append(statements, `CREATE ALGORITHM=TEMPTABLE VIEW `+table+` AS SELECT * FROM `+plainTables[i])
	}
	if err := s.exec(append(statements, viewsSQL...)...); err != nil {
		return err
	}
	if err := base.Doing("grant rights", s.grant()); err != nil {
		return err
	}
	if err := base.Doing("copy new rows", s.mirror(plainTables, false)); err != nil {
		return err
	}
	if err := base.Doing("copy rows", s.fill(plainTables, false)); err != nil {
		return err
	}
	if err := s.compareColumns(plainTables); err != nil {
		return err
	}
	err := s.rename(slices.Concat(plainTables, partedTables, nextTables, nextViews),
		slices.Concat(formerTables, formerViews, partedTables, plainTables))
	if err != nil {
		return err
	}
	return s.finish()
}

// finish makes up for what the change to partitions could not do at once.
func (s session) finish() error {
	if err := s.patiently(cascadeTriggerSQL); err != nil {
		return err
	}
	return base.Doing("drop the former tables", s.undo(partedTables))
}

// compareColumns fails if columns were added meanwhile, such as by a migration: the triggers do not know them.
func (s session) compareColumns(tables []string) error {
	for i, table := range tables {
		now, err := s.columns(table)
		if err != nil {
			return err
		}
		next, err := s.columns(nextTables[i])
		if err == nil && now != next {
			err = fmt.Errorf("the columns of %s have changed meanwhile: call again", s.own(table))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rename gives tables and views other names at once.
func (s session) rename(from, to []string) error {
	var pairs []string
	for i := range from {
		pairs = append(pairs, from[i]+` TO `+to[i])
	}
	return base.Doing("change the layout", s.patiently(`RENAME TABLE `+strings.Join(pairs, ", ")))
}

// openForgottenSQL finds forgotten messages with an open status. It reads the keys of all statuses.
const openForgottenSQL = `
SELECT COUNT(*) FROM {parted statuses} s WHERE s.completed_at IS NULL
	AND (SELECT 1 FROM {message ids} i FORCE INDEX (number) WHERE i.number = s.message_number) IS NULL`

// Unpartition gives the tables the plain layout, while programs use them. If they have it, it takes back what Partition
// has begun.
func (s *Store) Unpartition(ctx context.Context) error {
	return s.repartition(ctx, func(own session) error { return own.orUndo(own.unpartition(), partedTables) })
}

func (s session) unpartition() error {
	partitioned, err := s.hasTable(s.ctx, s.pool, partedTables[0])
	if err != nil || !partitioned {
		return errors.Join(err, s.undo(plainTables))
	}
	if err := s.refuse(partedTables); err != nil {
		return err
	}
	if err := base.Doing("take back what was begun", s.undo(partedTables)); err != nil {
		return err
	}
	open, err := s.numbers(openForgottenSQL)
	if err == nil && open[0] > 0 {
		err = fmt.Errorf("%w: %d statuses of forgotten messages are open, and their IDs may be other messages' by now: "+
			"ask again when these are completed", store.ErrPartitionsLeft, open[0])
	}
	if err != nil {
		return err
	}
	ids, err := s.createText(slimTables[0])
	if err != nil {
		return err
	}
	for i, table := range partedTables {
		text, err := s.createText(table)
		if err != nil {
			return err
		}
		create := `CREATE TABLE ` + nextTables[i] + text.other
		if i == 0 {
			create += ` AUTO_INCREMENT=` + strconv.FormatInt(ids.counter, 10)
		}
		if err := s.exec(create); err != nil {
			return err
		}
	}
	if err := base.Doing("copy new rows", s.mirror(partedTables, true)); err != nil {
		return err
	}
	if err := base.Doing("copy rows", s.fill(partedTables, true)); err != nil {
		return err
	}
	if err := s.compareColumns(partedTables); err != nil {
		return err
	}
	// Without a check: all rows have been copied after their messages.
	_, name := s.table(s.own("{own handler_statuses_message_fk}"))
	if err := s.exec(`SET SESSION foreign_key_checks = 0`); err != nil {
		return err
	}
	err = s.patiently(`ALTER TABLE ` + nextTables[1] + ` ADD CONSTRAINT "` + name + `" FOREIGN KEY (message_number) REFERENCES ` +
		nextTables[0] + ` (number) ON DELETE CASCADE, ALGORITHM=INPLACE`)
	if err = errors.Join(err, s.exec(`SET SESSION foreign_key_checks = 1`)); err != nil {
		return err
	}
	err = s.rename(slices.Concat(plainTables, partedTables, nextTables),
		slices.Concat(formerViews, formerTables, plainTables))
	if err != nil {
		return err
	}
	return base.Doing("drop the former tables", s.undo(plainTables))
}
