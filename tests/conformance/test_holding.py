from harel.testing.conformance.holding import *  # noqa: F403
