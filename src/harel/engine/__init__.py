"""The engine: the queue without I/O, the transports over it, and the worker that drains them."""
