from harel.testing.conformance.undisturbed import *  # noqa: F403
