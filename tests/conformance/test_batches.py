from harel.testing.conformance.batches import *  # noqa: F403
