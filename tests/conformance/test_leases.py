from harel.testing.conformance.leases import *  # noqa: F403
