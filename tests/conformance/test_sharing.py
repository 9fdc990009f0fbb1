from harel.testing.conformance.sharing import *  # noqa: F403
