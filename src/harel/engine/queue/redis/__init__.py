"""The operations on Redis."""
