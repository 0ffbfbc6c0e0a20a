"""The room's public names: adding or dropping one is a decision, made here too."""

import steptime.timeline

NAMES = """
EventKind Inputs Lane Timeline TraceQuality build merge read_trace
"""


def test_public_names():
    assert sorted(steptime.timeline.__all__) == sorted(NAMES.split())
    assert all(hasattr(steptime.timeline, name) for name in steptime.timeline.__all__)
