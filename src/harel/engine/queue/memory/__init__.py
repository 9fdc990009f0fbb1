"""The in-memory queue, which is also the reference model of the tests."""
