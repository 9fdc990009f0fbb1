from harel.testing.conformance.priority import *  # noqa: F403
