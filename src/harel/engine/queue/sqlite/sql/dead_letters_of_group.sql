-- Lists one group's dead letters by seq, a page.
-- :group_id, :limit, :after (-1 for the first page)

SELECT seq, group_id, event, attempts, priority, reason, rejected_at
FROM {prefix}_dead_letters INDEXED BY {prefix}_dead_letters_group
WHERE group_id = :group_id AND seq > :after
ORDER BY seq
LIMIT :limit;
