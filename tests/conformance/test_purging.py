from harel.testing.conformance.purging import *  # noqa: F403
