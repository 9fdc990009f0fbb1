"""The operations for rqlite: the statements of SQLite, sent so that each takes effect once."""
