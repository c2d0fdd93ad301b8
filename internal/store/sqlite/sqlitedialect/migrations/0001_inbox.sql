-- The tables of one inbox. ${prefix} stands for the beginning of their names.
-- Every statement ends with a semicolon at the end of a line.

CREATE TABLE IF NOT EXISTS "${prefix}messages" (
    "id" varchar(200) NOT NULL,
    "namespace" varchar(200) NOT NULL,
    "number" integer NOT NULL,
    "transport_name" varchar(50) NOT NULL,
    "type" varchar(255) NOT NULL,
    "source" varchar(1024) NOT NULL,
    "content" blob NOT NULL,
    "content_type" varchar(255) NOT NULL,
    "serialized_properties" text NOT NULL,
    "ordering_key" blob,
    "received_at" datetime NOT NULL,
    PRIMARY KEY ("id", "namespace")
);

-- What statuses refer to: narrow, and ascending where IDs are random, so that
-- their index grows at its end and is not written all over.
CREATE UNIQUE INDEX IF NOT EXISTS "${prefix}messages_number" ON "${prefix}messages" ("number");

-- Cleanup walks by age.
CREATE INDEX IF NOT EXISTS "${prefix}messages_received_at" ON "${prefix}messages" ("received_at", "number");

-- Times are UTC text of fixed width (2006-01-02 15:04:05.000000+00:00), so that
-- they sort. The sequence is assigned by the accepting statement. The primary key
-- is the deduplication. A message ID is looked up in the messages' primary key.
CREATE TABLE IF NOT EXISTS "${prefix}handler_statuses" (
    "id" uuid NOT NULL,
    "message_number" integer NOT NULL,
    "sequence" integer NOT NULL,
    "created_at" datetime NOT NULL,
    "error_count" integer NOT NULL DEFAULT 0,
    "abandoned_count" integer NOT NULL DEFAULT 0,
    "interrupted_count" integer NOT NULL DEFAULT 0,
    "requeued_count" integer NOT NULL DEFAULT 0,
    "message_bytes" integer NOT NULL DEFAULT 0,
    "message_id" varchar(200) NOT NULL,
    "handler_key" varchar(200) NOT NULL,
    "is_poisoned" numeric NOT NULL DEFAULT false,
    "is_waiting" numeric NOT NULL DEFAULT false,
    "holds_lane" numeric NOT NULL DEFAULT false,
    "outcome" varchar(20) NOT NULL DEFAULT (''),
    "version" integer NOT NULL DEFAULT 1,
    "processing_started_at" datetime,
    "completed_at" datetime,
    "next_attempt_at" datetime,
    "published_at" datetime,
    "poisoned_at" datetime,
    "worker_id" uuid,
    "lane_handler" integer,
    "lane_key" integer,
    "last_error" varchar(2000),
    "fingerprint" varchar(16),
    "attempts" text,
    PRIMARY KEY ("message_number", "handler_key"),
    CONSTRAINT "${prefix}handler_statuses_message_fk" FOREIGN KEY ("message_number")
        REFERENCES "${prefix}messages" ("number") ON DELETE CASCADE
);

-- Where a status that is not completed is found by its ID. A completed row is not
-- in it, so that completing writes one index entry and not two. CASE reserves the
-- index for statements that say the same: it also has poisoned and waiting rows,
-- which those that look for pending ones must not read.
CREATE UNIQUE INDEX IF NOT EXISTS "${prefix}handler_statuses_open" ON "${prefix}handler_statuses" ("id") WHERE CASE WHEN "completed_at" IS NULL THEN true ELSE false END;

-- What claims walk: one handler key's pending rows, oldest due first. Led by
-- the key, so that another handler's backlog costs nothing; without the rows
-- known to wait behind another of their lane, so that they cost nothing either.
CREATE INDEX IF NOT EXISTS "${prefix}handler_statuses_due" ON "${prefix}handler_statuses" ("handler_key", COALESCE("next_attempt_at", "created_at"), "id") WHERE "completed_at" IS NULL AND NOT "is_poisoned" AND NOT "is_waiting";

-- Poisoned rows are few and looked at often.
CREATE INDEX IF NOT EXISTS "${prefix}handler_statuses_poisoned" ON "${prefix}handler_statuses" ("handler_key", "id") WHERE "is_poisoned" AND "completed_at" IS NULL;

-- What is still to be published to a dead-letter topic, where a channel does that.
CREATE INDEX IF NOT EXISTS "${prefix}handler_statuses_unpublished" ON "${prefix}handler_statuses" ("handler_key", "id") WHERE "is_poisoned" AND "completed_at" IS NULL AND "published_at" IS NULL;

-- What fails alike: the groups of a handler key, and the rows of a group. Of a row
-- that never failed nothing is here, so handling it does not touch this index. Nor of
-- one that was retried, which keeps its fingerprint and is in no group until it fails.
CREATE INDEX IF NOT EXISTS "${prefix}handler_statuses_failures" ON "${prefix}handler_statuses" ("handler_key", "fingerprint", "id") WHERE "completed_at" IS NULL AND "fingerprint" IS NOT NULL AND ("is_poisoned" OR "error_count" + "abandoned_count" + "interrupted_count" > 0);

-- Who is first in a lane. Poisoned rows stand apart: where lanes skip them they
-- may be many.
CREATE INDEX IF NOT EXISTS "${prefix}handler_statuses_lane" ON "${prefix}handler_statuses" ("lane_handler", "lane_key", "is_poisoned", "sequence", "id") WHERE "completed_at" IS NULL AND "lane_key" IS NOT NULL;

-- No lane has two claimed rows.
CREATE UNIQUE INDEX IF NOT EXISTS "${prefix}handler_statuses_lane_holder" ON "${prefix}handler_statuses" ("lane_handler", "lane_key") WHERE "holds_lane";

-- Waiting rows: by handler key where they are to be found for their own sake,
-- by lane where a lost wake-up is looked for. CASE reserves the latter for that: it
-- must not serve a search by handler key where statistics say that no row waits.
CREATE INDEX IF NOT EXISTS "${prefix}handler_statuses_waiting" ON "${prefix}handler_statuses" ("handler_key", "id") WHERE "is_waiting";
CREATE INDEX IF NOT EXISTS "${prefix}handler_statuses_waiting_lane" ON "${prefix}handler_statuses" ("lane_handler", "lane_key") WHERE CASE WHEN "is_waiting" THEN true ELSE false END;

CREATE TABLE IF NOT EXISTS "${prefix}rejected_messages" (
    "id" uuid NOT NULL PRIMARY KEY,
    "channel" varchar(200) NOT NULL,
    "topic" varchar(255) NOT NULL,
    "partition" integer NOT NULL,
    "record_offset" integer NOT NULL,
    "record_timestamp" datetime NOT NULL,
    "key" blob,
    "value" blob,
    "headers" text NOT NULL,
    "reason" varchar(2000) NOT NULL,
    "rejected_at" datetime NOT NULL,
    "published_at" datetime,
    "requested_by" varchar(200),
    "requested_at" datetime
);

-- A record is rejected once, however often it is delivered.
CREATE UNIQUE INDEX IF NOT EXISTS "${prefix}rejected_messages_coordinates" ON "${prefix}rejected_messages" ("channel", "topic", "partition", "record_offset", "record_timestamp");

-- Listed and pruned by age.
CREATE INDEX IF NOT EXISTS "${prefix}rejected_messages_rejected_at" ON "${prefix}rejected_messages" ("rejected_at", "id");

-- As for poisoned statuses.
CREATE INDEX IF NOT EXISTS "${prefix}rejected_messages_unpublished" ON "${prefix}rejected_messages" ("channel", "id") WHERE "published_at" IS NULL;

-- What operators want to be accepted again, until a process takes it.
CREATE INDEX IF NOT EXISTS "${prefix}rejected_messages_requested" ON "${prefix}rejected_messages" ("requested_at", "id") WHERE "requested_at" IS NOT NULL;

CREATE TABLE IF NOT EXISTS "${prefix}gaps" (
    "id" uuid NOT NULL PRIMARY KEY,
    "channel" varchar(200) NOT NULL,
    "topic" varchar(255) NOT NULL,
    "partition" integer NOT NULL,
    "from_offset" integer NOT NULL,
    "to_offset" integer NOT NULL,
    "reason" varchar(2000) NOT NULL,
    "found_at" datetime NOT NULL
);

-- A gap is kept once, however often it is met.
CREATE UNIQUE INDEX IF NOT EXISTS "${prefix}gaps_coordinates" ON "${prefix}gaps" ("channel", "topic", "partition", "from_offset", "to_offset");

-- What operators decided about halted partitions, until it is carried out.
CREATE TABLE IF NOT EXISTS "${prefix}partition_requests" (
    "channel" varchar(200) NOT NULL,
    "topic" varchar(255) NOT NULL,
    "partition" integer NOT NULL,
    "id" uuid NOT NULL,
    "record_offset" integer NOT NULL,
    "decision" varchar(20) NOT NULL,
    "actor" varchar(200) NOT NULL,
    "requested_at" datetime NOT NULL,
    PRIMARY KEY ("channel", "topic", "partition")
);

-- What operators request of living workers, and what came of it.
CREATE TABLE IF NOT EXISTS "${prefix}requests" (
    "id" uuid NOT NULL PRIMARY KEY,
    "kind" varchar(20) NOT NULL,
    "target" varchar(200) NOT NULL,
    "argument" text NOT NULL,
    "actor" varchar(200) NOT NULL,
    "requested_at" datetime NOT NULL,
    "taken_by" varchar(300) NOT NULL,
    "taken_at" datetime,
    "ended_at" datetime,
    "result" text NOT NULL,
    "problem" varchar(2000) NOT NULL
);

-- Polled and pruned by age.
CREATE INDEX IF NOT EXISTS "${prefix}requests_requested_at" ON "${prefix}requests" ("requested_at", "id");

-- What each partition of each channel has caught up to, which cleanup obeys. A topic
-- has a row of its own, with partition -1: when its partitions were last listed.
CREATE TABLE IF NOT EXISTS "${prefix}partitions" (
    "channel" varchar(200) NOT NULL,
    "group_id" varchar(255) NOT NULL,
    "topic" varchar(255) NOT NULL,
    "partition" integer NOT NULL,
    "inline" numeric NOT NULL,
    "caught_up_at" datetime,
    "declared_at" datetime NOT NULL,
    "undeclared_for" integer NOT NULL DEFAULT 0,
    "counted_at" datetime NOT NULL,
    PRIMARY KEY ("channel", "group_id", "topic", "partition")
);

CREATE TABLE IF NOT EXISTS "${prefix}locks" (
    "name" varchar(200) NOT NULL PRIMARY KEY,
    "owner_id" uuid NOT NULL,
    "expires_at" datetime NOT NULL
);

CREATE TABLE IF NOT EXISTS "${prefix}workers" (
    "id" uuid NOT NULL PRIMARY KEY,
    "host" varchar(255) NOT NULL,
    "pid" integer NOT NULL,
    "handler_keys" text NOT NULL,
    "started_at" datetime NOT NULL,
    "heartbeat_at" datetime NOT NULL,
    "stopped_at" datetime,
    "released_at" datetime,
    "health" text NOT NULL,
    "consumers" text NOT NULL,
    "settings" text NOT NULL DEFAULT (''),
    "database_role" text NOT NULL
);

-- What operators and programs have said of handler keys. An accept reads the legacy keys of
-- a key that it does not know, to see that another program has run its handler under it.
CREATE TABLE IF NOT EXISTS "${prefix}handlers" (
    "handler_key" varchar(200) NOT NULL PRIMARY KEY,
    "paused" numeric NOT NULL DEFAULT false,
    "legacy_keys" text NOT NULL DEFAULT (''),
    "updated_at" datetime NOT NULL
);

CREATE TABLE IF NOT EXISTS "${prefix}markers" (
    "message_id" varchar(200) NOT NULL,
    "handler_key" varchar(200) NOT NULL,
    "namespace" varchar(200) NOT NULL,
    "message_type" varchar(255) NOT NULL,
    "processed_at" datetime NOT NULL,
    "expires_at" datetime NOT NULL,
    PRIMARY KEY ("message_id", "handler_key", "namespace")
);

CREATE INDEX IF NOT EXISTS "${prefix}markers_expires_at" ON "${prefix}markers" ("expires_at");

CREATE TABLE IF NOT EXISTS "${prefix}audit" (
    "id" uuid NOT NULL PRIMARY KEY,
    "actor" varchar(200) NOT NULL,
    "action" varchar(50) NOT NULL,
    "target" varchar(500) NOT NULL,
    "detail" text NOT NULL,
    "occurred_at" datetime NOT NULL,
    "database_role" text NOT NULL
);

CREATE INDEX IF NOT EXISTS "${prefix}audit_occurred_at" ON "${prefix}audit" ("occurred_at");

CREATE TABLE IF NOT EXISTS "${prefix}meta" (
    "key" varchar(50) NOT NULL PRIMARY KEY,
    "value" varchar(200) NOT NULL
);

-- The hash is that of this text. Tables that have a version already keep the hash of the
-- text that made them.
INSERT INTO "${prefix}meta" ("key", "value")
    SELECT column1, column2 FROM (VALUES ('schema_version', '1'), ('hash_0001', '${hash}')) AS made
    WHERE NOT EXISTS (SELECT 1 FROM "${prefix}meta" WHERE "key" = 'schema_version')
    ON CONFLICT ("key") DO NOTHING;
