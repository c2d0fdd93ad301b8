ALTER TABLE inbox_handler_statuses SET (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.01, vacuum_index_cleanup = on);
