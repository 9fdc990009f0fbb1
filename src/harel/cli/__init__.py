"""The ``harel`` command."""
