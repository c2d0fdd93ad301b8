SELECT host, pid, now() - heartbeat_at AS silent_for, stopped_at, released_at FROM inbox_workers ORDER BY heartbeat_at DESC;
SELECT handler_key FROM inbox_handlers WHERE paused;
