SELECT handler_key, fingerprint, min(substr(last_error, 1, 80)) AS error, count(*) AS statuses, min(created_at) AS first, max(created_at) AS last
FROM inbox_handler_statuses
WHERE is_poisoned AND completed_at IS NULL
GROUP BY handler_key, fingerprint
ORDER BY statuses DESC LIMIT 20;
