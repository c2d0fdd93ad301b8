SELECT (SELECT count(*) FROM inbox_handler_statuses WHERE handler_key = 'order-handler' AND completed_at IS NULL AND NOT is_poisoned AND NOT is_waiting)
     + (SELECT count(*) FROM inbox_handler_statuses WHERE handler_key = 'order-handler' AND completed_at IS NULL AND is_poisoned)
     + (SELECT count(*) FROM inbox_handler_statuses WHERE handler_key = 'order-handler' AND is_waiting);
