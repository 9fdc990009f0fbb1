from harel.testing.conformance.dead_letters import *  # noqa: F403
