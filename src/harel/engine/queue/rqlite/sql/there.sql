-- Whether the tables are there that only rqlite's schema has.

SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{prefix}_clock';
