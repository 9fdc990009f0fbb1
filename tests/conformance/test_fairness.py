from harel.testing.conformance.fairness import *  # noqa: F403
