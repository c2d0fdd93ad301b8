-- The tables of one inbox. ${schema} and ${prefix} stand for where they live.
-- Every statement ends with a semicolon at the end of a line, and can be repeated:
-- each of them commits by itself.
--
-- Identifiers are binary: no collation of all servers tells all of them apart. Times
-- are UTC. MySQL has no partial indexes: in their place stand generated columns that
-- are NULL where a row is not meant, and their indexes.

CREATE TABLE IF NOT EXISTS ${schema}`${prefix}messages` (
    `number` bigint NOT NULL AUTO_INCREMENT,
    `id` varbinary(800) NOT NULL,
    `namespace` varbinary(800) NOT NULL,
    `transport_name` varbinary(200) NOT NULL,
    `type` varbinary(1020) NOT NULL,
    `source` varbinary(4096) NOT NULL,
    `content` longblob NOT NULL,
    `content_type` varbinary(1020) NOT NULL,
    `serialized_properties` longtext NOT NULL,
    `ordering_key` longblob,
    `received_at` datetime(6) NOT NULL,
    PRIMARY KEY (`number`),
    -- The deduplication.
    UNIQUE KEY `by_id` (`id`, `namespace`),
    -- Cleanup walks by age.
    KEY `received_at` (`received_at`, `number`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- A status is found by its ID, which ascends, or by its message.
CREATE TABLE IF NOT EXISTS ${schema}`${prefix}handler_statuses` (
    `id` varbinary(36) NOT NULL,
    `message_number` bigint NOT NULL,
    `sequence` bigint NOT NULL AUTO_INCREMENT,
    `created_at` datetime(6) NOT NULL,
    `error_count` int NOT NULL DEFAULT 0,
    `abandoned_count` int NOT NULL DEFAULT 0,
    `interrupted_count` int NOT NULL DEFAULT 0,
    `requeued_count` int NOT NULL DEFAULT 0,
    `message_bytes` int NOT NULL DEFAULT 0,
    `message_id` varbinary(800) NOT NULL,
    `handler_key` varbinary(800) NOT NULL,
    `is_poisoned` tinyint(1) NOT NULL DEFAULT 0,
    `is_waiting` tinyint(1) NOT NULL DEFAULT 0,
    `holds_lane` tinyint(1) NOT NULL DEFAULT 0,
    `outcome` varbinary(20) NOT NULL DEFAULT '',
    `version` bigint NOT NULL DEFAULT 1,
    `processing_started_at` datetime(6),
    `completed_at` datetime(6),
    `next_attempt_at` datetime(6),
    `published_at` datetime(6),
    `poisoned_at` datetime(6),
    `worker_id` varbinary(36),
    `lane_handler` bigint,
    `lane_key` bigint,
    `last_error` text,
    `fingerprint` varbinary(16),
    `attempts` longtext,
    -- When a pending status is due. A claim leaves it alone, so that it touches no index.
    `due_at` datetime(6) GENERATED ALWAYS AS (CASE WHEN `completed_at` IS NULL AND `is_poisoned` = 0 AND `is_waiting` = 0 THEN COALESCE(`next_attempt_at`, `created_at`) END) STORED,
    -- 1 for poisoned statuses, 2 for those that wait in their lane.
    `parked` tinyint GENERATED ALWAYS AS (CASE WHEN `completed_at` IS NULL AND `is_poisoned` = 1 THEN 1 WHEN `is_waiting` = 1 THEN 2 END) STORED,
    `unpublished` tinyint GENERATED ALWAYS AS (CASE WHEN `completed_at` IS NULL AND `is_poisoned` = 1 AND `published_at` IS NULL THEN 1 END) STORED,
    `failing` varbinary(16) GENERATED ALWAYS AS (CASE WHEN `completed_at` IS NULL AND (`is_poisoned` = 1 OR `error_count` + `abandoned_count` + `interrupted_count` > 0) THEN `fingerprint` END) STORED,
    `lane_open` bigint GENERATED ALWAYS AS (CASE WHEN `completed_at` IS NULL THEN `lane_handler` END) STORED,
    `lane_held` bigint GENERATED ALWAYS AS (CASE WHEN `holds_lane` = 1 THEN `lane_key` END) STORED,
    `lane_waiting` bigint GENERATED ALWAYS AS (CASE WHEN `is_waiting` = 1 THEN `lane_handler` END) STORED,
    PRIMARY KEY (`id`),
    UNIQUE KEY `message` (`message_number`, `handler_key`),
    KEY `sequence` (`sequence`),
    -- What claims walk: one handler key's pending rows, oldest due first.
    KEY `due` (`handler_key`, `due_at`, `id`),
    KEY `parked` (`parked`, `handler_key`, `id`),
    -- What is still to be published to a dead-letter topic, where a channel does that.
    KEY `unpublished` (`unpublished`, `handler_key`, `id`),
    -- What fails alike: the groups of a handler key, and the rows of a group.
    KEY `failures` (`handler_key`, `failing`, `id`),
    -- Who is first in a lane. Poisoned rows stand apart: where lanes skip them they may be many.
    KEY `lane` (`lane_open`, `lane_key`, `is_poisoned`, `sequence`, `id`),
    -- No lane has two claimed rows.
    UNIQUE KEY `lane_holder` (`lane_held`, `lane_handler`),
    -- Where a lost wake-up is looked for.
    KEY `lane_waiting` (`lane_waiting`, `lane_key`),
    CONSTRAINT `${prefix}handler_statuses_message_fk` FOREIGN KEY (`message_number`)
        REFERENCES ${schema}`${prefix}messages` (`number`) ON DELETE CASCADE
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ${schema}`${prefix}rejected_messages` (
    `id` varbinary(36) NOT NULL,
    `channel` varbinary(800) NOT NULL,
    `topic` varbinary(1020) NOT NULL,
    `partition` int NOT NULL,
    `record_offset` bigint NOT NULL,
    `record_timestamp` datetime(6) NOT NULL,
    `key` longblob,
    `value` longblob,
    `headers` longtext NOT NULL,
    `reason` text NOT NULL,
    `rejected_at` datetime(6) NOT NULL,
    `published_at` datetime(6),
    `requested_by` varbinary(800),
    `requested_at` datetime(6),
    `unpublished` tinyint GENERATED ALWAYS AS (CASE WHEN `published_at` IS NULL THEN 1 END) STORED,
    PRIMARY KEY (`id`),
    -- A record is rejected once, however often it is delivered.
    UNIQUE KEY `coordinates` (`channel`, `topic`, `partition`, `record_offset`, `record_timestamp`),
    -- Listed and pruned by age.
    KEY `rejected_at` (`rejected_at`, `id`),
    KEY `unpublished` (`unpublished`, `channel`, `id`),
    -- What operators want to be accepted again, until a process takes it.
    KEY `requested` (`requested_at`, `id`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ${schema}`${prefix}gaps` (
    `id` varbinary(36) NOT NULL,
    `channel` varbinary(800) NOT NULL,
    `topic` varbinary(1020) NOT NULL,
    `partition` int NOT NULL,
    `from_offset` bigint NOT NULL,
    `to_offset` bigint NOT NULL,
    `reason` text NOT NULL,
    `found_at` datetime(6) NOT NULL,
    PRIMARY KEY (`id`),
    -- A gap is kept once, however often it is met.
    UNIQUE KEY `coordinates` (`channel`, `topic`, `partition`, `from_offset`, `to_offset`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What operators decided about halted partitions, until it is carried out.
CREATE TABLE IF NOT EXISTS ${schema}`${prefix}partition_requests` (
    `channel` varbinary(800) NOT NULL,
    `topic` varbinary(1020) NOT NULL,
    `partition` int NOT NULL,
    `id` varbinary(36) NOT NULL,
    `record_offset` bigint NOT NULL,
    `decision` varbinary(20) NOT NULL,
    `actor` varbinary(800) NOT NULL,
    `requested_at` datetime(6) NOT NULL,
    PRIMARY KEY (`channel`, `topic`, `partition`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What operators request of living workers, and what came of it.
CREATE TABLE IF NOT EXISTS ${schema}`${prefix}requests` (
    `id` varbinary(36) NOT NULL,
    `kind` varbinary(20) NOT NULL,
    `target` varbinary(800) NOT NULL,
    `argument` longtext NOT NULL,
    `actor` varbinary(800) NOT NULL,
    `requested_at` datetime(6) NOT NULL,
    `taken_by` varbinary(1200) NOT NULL,
    `taken_at` datetime(6),
    `ended_at` datetime(6),
    `result` longtext NOT NULL,
    `problem` text NOT NULL,
    PRIMARY KEY (`id`),
    -- Polled and pruned by age.
    KEY `requested_at` (`requested_at`, `id`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What each partition of each channel has caught up to, which cleanup obeys. A topic
-- has a row of its own, with partition -1: when its partitions were last listed.
CREATE TABLE IF NOT EXISTS ${schema}`${prefix}partitions` (
    `channel` varbinary(800) NOT NULL,
    `group_id` varbinary(1020) NOT NULL,
    `topic` varbinary(1020) NOT NULL,
    `partition` int NOT NULL,
    `inline` tinyint(1) NOT NULL,
    `caught_up_at` datetime(6),
    `declared_at` datetime(6) NOT NULL,
    `undeclared_for` bigint NOT NULL DEFAULT 0,
    `counted_at` datetime(6) NOT NULL,
    PRIMARY KEY (`channel`, `group_id`, `topic`, `partition`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ${schema}`${prefix}locks` (
    `name` varbinary(800) NOT NULL,
    `owner_id` varbinary(36) NOT NULL,
    `expires_at` datetime(6) NOT NULL,
    PRIMARY KEY (`name`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ${schema}`${prefix}workers` (
    `id` varbinary(36) NOT NULL,
    `host` varbinary(1020) NOT NULL,
    `pid` bigint NOT NULL,
    `handler_keys` longtext NOT NULL,
    `started_at` datetime(6) NOT NULL,
    `heartbeat_at` datetime(6) NOT NULL,
    `stopped_at` datetime(6),
    `released_at` datetime(6),
    `health` longtext NOT NULL,
    `consumers` longtext NOT NULL,
    `settings` longtext NOT NULL DEFAULT (''),
    `database_role` varbinary(800) NOT NULL,
    PRIMARY KEY (`id`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What claims of a worker lock, shared, until they are committed. Its row above is
-- written with each heartbeat, which must not wait for them.
CREATE TABLE IF NOT EXISTS ${schema}`${prefix}worker_locks` (
    `id` varbinary(36) NOT NULL,
    PRIMARY KEY (`id`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What operators and programs have said of handler keys. An accept reads the legacy keys of
-- a key that it does not know, to see that another program has run its handler under it.
CREATE TABLE IF NOT EXISTS ${schema}`${prefix}handlers` (
    `handler_key` varbinary(800) NOT NULL,
    `paused` tinyint(1) NOT NULL DEFAULT 0,
    `legacy_keys` longtext NOT NULL DEFAULT (''),
    `updated_at` datetime(6) NOT NULL,
    PRIMARY KEY (`handler_key`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ${schema}`${prefix}markers` (
    `message_id` varbinary(800) NOT NULL,
    `handler_key` varbinary(800) NOT NULL,
    `namespace` varbinary(800) NOT NULL,
    `message_type` varbinary(1020) NOT NULL,
    `processed_at` datetime(6) NOT NULL,
    `expires_at` datetime(6) NOT NULL,
    PRIMARY KEY (`message_id`, `handler_key`, `namespace`),
    KEY `expires_at` (`expires_at`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ${schema}`${prefix}audit` (
    `id` varbinary(36) NOT NULL,
    `actor` varbinary(800) NOT NULL,
    `action` varbinary(200) NOT NULL,
    `target` varbinary(2000) NOT NULL,
    `detail` longtext NOT NULL,
    `occurred_at` datetime(6) NOT NULL,
    `database_role` varbinary(800) NOT NULL,
    PRIMARY KEY (`id`),
    KEY `occurred_at` (`occurred_at`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ${schema}`${prefix}meta` (
    `key` varbinary(200) NOT NULL,
    `value` varbinary(800) NOT NULL,
    PRIMARY KEY (`key`)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The hash is that of this text. Tables that have a version already keep the hash of the
-- text that made them.
INSERT INTO ${schema}`${prefix}meta` (`key`, `value`)
    SELECT 'hash_0001', '${hash}' FROM DUAL
    WHERE NOT EXISTS (SELECT 1 FROM ${schema}`${prefix}meta` WHERE `key` = 'schema_version')
    ON DUPLICATE KEY UPDATE `value` = VALUES(`value`);

INSERT INTO ${schema}`${prefix}meta` (`key`, `value`) VALUES ('schema_version', '1')
    ON DUPLICATE KEY UPDATE `key` = `key`;
