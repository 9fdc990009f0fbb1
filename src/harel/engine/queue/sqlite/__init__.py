"""The operations in SQLite's dialect."""
