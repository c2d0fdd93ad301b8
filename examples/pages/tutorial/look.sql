SELECT message_id, handler_key, last_error,
       CASE WHEN completed_at IS NOT NULL THEN 'completed'
            WHEN is_poisoned THEN 'poisoned'
            WHEN processing_started_at IS NOT NULL THEN 'processing'
            ELSE 'pending, ' || error_count || ' errors' END AS state
FROM inbox_handler_statuses ORDER BY sequence;
