"""The room's public names: adding or dropping one is a decision, made here too."""

import steptime.explain

NAMES = """
Breakdown CAUSES Cell CorrectedCell Explanation Facts GROUPS Gap OpRow PHASES RESOURCES RankRow ScriptResult
StepTime Utilisation break_down explain_script explain_session explain_trace look_for_others render with_note
"""


def test_public_names():
    assert sorted(steptime.explain.__all__) == sorted(NAMES.split())
    assert all(hasattr(steptime.explain, name) for name in steptime.explain.__all__)
