from harel.testing.conformance.order import *  # noqa: F403
