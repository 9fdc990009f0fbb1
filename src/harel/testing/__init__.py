"""The contract as tests that any backend can run, and a checker of what concurrent processes did.

An outside backend runs the whole suite with a few lines::

    import pytest
    from harel.testing import ManualClock, Subject
    from harel.testing.conformance import *  # noqa: F403

    @pytest.fixture
    def subject(tmp_path):
        with Subject(lambda **options: MyTransport(tmp_path / "queue", **options)) as subject:
            yield subject
"""

from harel.testing.subject import Blocking, ManualClock, Subject

__all__ = ["Blocking", "ManualClock", "Subject"]
