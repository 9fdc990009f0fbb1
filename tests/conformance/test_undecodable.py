from harel.testing.conformance.undecodable import *  # noqa: F403
