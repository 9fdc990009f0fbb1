from harel.testing.conformance.bad_input import *  # noqa: F403
