from harel.testing.conformance.names import *  # noqa: F403
