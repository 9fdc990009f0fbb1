-- Lists all dead letters by seq, a page.
-- :limit, :after (-1 for the first page)

SELECT seq, group_id, event, attempts, priority, reason, rejected_at
FROM {prefix}_dead_letters INDEXED BY {prefix}_dead_letters_page
WHERE seq > :after
ORDER BY seq
LIMIT :limit;
