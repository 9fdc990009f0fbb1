"""The queue on MongoDB, without I/O."""
