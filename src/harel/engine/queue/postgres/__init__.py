"""The queue in PostgreSQL."""
