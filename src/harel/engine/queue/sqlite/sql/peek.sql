-- A group's first messages.
-- :group_id, :limit

SELECT seq, event FROM {prefix}_messages INDEXED BY {prefix}_messages_group
WHERE group_id = :group_id ORDER BY seq LIMIT :limit;
