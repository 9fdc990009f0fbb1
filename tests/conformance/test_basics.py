from harel.testing.conformance.basics import *  # noqa: F403
