from harel.testing.conformance.clock import *  # noqa: F403
