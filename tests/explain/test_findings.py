"""Findings on a step whose shares are known."""

import importlib.util
import sys
from pathlib import Path

from steptime.explain.findings import find
from steptime.explain.remedies import FAMILIES, Micro, evidence_of

_SPEC = importlib.util.spec_from_file_location("scripted", Path(__file__).parents[1] / "tune" / "scripted.py")
scripted = importlib.util.module_from_spec(_SPEC)
sys.modules["scripted"] = scripted
_SPEC.loader.exec_module(scripted)


def test_the_largest_share_comes_first_with_its_op_and_its_remedy():
    first, *_ = find(scripted.TRANSFORMER)
    assert first["title"] == "40 % of the step is random numbers"
    assert first["ns"] == 40_000_000
    assert first["ops"] == ["aten::bernoulli_"]
    assert "parallel_dropout" in first["remedies"]


def test_shares_below_a_tenth_are_no_findings():
    assert all(finding["share"] >= 0.1 for finding in find(scripted.TRANSFORMER))
    assert not any(finding.get("group") == "optimizer" for finding in find(scripted.TRANSFORMER))


def test_a_dominating_op_without_a_remedy_is_said_to_have_none():
    step = scripted.explanation(
        [scripted.op("aten::cumsum", 90, group="other"), scripted.op("aten::mm", 10, group="matmul")]
    )
    first = find(step)[0]
    assert first["remedies"] == []
    assert "no remedy is known" in first["detail"]
    assert "aten::cumsum" in first["detail"]


def test_every_remedy_that_a_finding_names_exists():
    evidence = evidence_of(scripted.TRANSFORMER, cores=2)
    names = {p.remedy.name for family in FAMILIES for p in family.propose(evidence, Micro())}
    from steptime.explain import findings

    named = {name for listed in findings._REMEDIES.values() for name in listed}
    assert named | set(findings._COMMUNICATION) | set(findings._COPY) <= names
