from harel.testing.conformance.capability import *  # noqa: F403
