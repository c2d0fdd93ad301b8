SELECT l.name, w.host, w.pid, l.expires_at
FROM inbox_locks l LEFT JOIN inbox_workers w ON w.id = l.owner_id
WHERE l.name = 'processor' AND l.expires_at > now();
