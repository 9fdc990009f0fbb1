from harel.testing.conformance.waiting import *  # noqa: F403
