from harel.testing.conformance.closing import *  # noqa: F403
