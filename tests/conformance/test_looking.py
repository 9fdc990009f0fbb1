from harel.testing.conformance.looking import *  # noqa: F403
