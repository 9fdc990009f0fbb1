-- Two statements: whether the schema is there, and, if it is, which version.

SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{prefix}_schema';

SELECT max(version) FROM {prefix}_schema;
