from harel.testing.conformance.draining import *  # noqa: F403
