SELECT handler_key, count(*) AS due, min(COALESCE(next_attempt_at, created_at)) AS since
FROM inbox_handler_statuses
WHERE completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting AND processing_started_at IS NULL
  AND COALESCE(next_attempt_at, created_at) <= now()
GROUP BY handler_key;
