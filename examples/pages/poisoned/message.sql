SELECT s.id, s.handler_key, s.error_count, s.last_error, s.is_poisoned, s.next_attempt_at, s.completed_at, s.outcome, m.type, m.received_at
FROM inbox_messages m JOIN inbox_handler_statuses s ON s.message_number = m.number
WHERE m.id = 'o-3';
