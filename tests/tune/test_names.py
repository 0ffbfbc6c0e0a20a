"""The names that --only and --skip take are those that are proposed."""

from collections import Counter

from scripted import TRANSFORMER

from steptime.explain.remedies import NAMES, Micro, evidence_of, remedies_for


def test_every_remedy_is_proposed_once_and_no_other():
    proposed = remedies_for(evidence_of(TRANSFORMER, cores=2, python=""), Micro())
    assert Counter(proposal.remedy.name for proposal in proposed) == Counter(NAMES)
