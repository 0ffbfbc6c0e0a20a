"""The cheap gates on runs that differ in one known thing."""

import json

import numpy as np
import pytest

from steptime.tune import audit
from steptime.tune.trials import Trained

AUDIT = {
    "event": "audit",
    "steps": 30,
    "optimizers": [{"type": "AdamW", "settings": {"count": 30, "digest": "a", "first": [{"lr": 0.1}]}}],
    "loaders": [{"batch_size": 32, "drop_last": False, "batches": ["x", "y"], "training_steps": 30}],
    "dropout": {"active": 2, "sum_p": 0.2},
}


def run(losses=(1.0, 0.9), **audit_changes):
    return Trained(losses={"/home/me/train.py:9": np.array(losses)}, audit={**AUDIT, **audit_changes})


def test_the_same_training_passes():
    assert audit.audit_objections(run(), run()) == []


def test_a_longer_run_of_the_same_training_passes():
    longer = [{"type": "AdamW", "settings": {"count": 40, "digest": "b", "first": [{"lr": 0.1}]}}]
    loaders = [{"batch_size": 32, "drop_last": False, "batches": ["x", "y", "z"], "training_steps": 40}]
    assert audit.audit_objections(run(), run(steps=40, optimizers=longer, loaders=loaders)) == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"optimizers": [{"type": "AdamW", "settings": {"count": 30, "digest": "c", "first": [{"lr": 0.11}]}}]}, "lr"),
        ({"dropout": {"active": 1, "sum_p": 0.1}}, "dropout.active: 2 became 1"),
        ({"loaders": [{**AUDIT["loaders"][0], "drop_last": True}]}, "drop_last: False became True"),
        ({"loaders": [{**AUDIT["loaders"][0], "batches": ["x", "q"]}]}, "batches"),
    ],
)
def test_what_is_trained_differently_is_named(changed, says):
    assert any(says in sentence for sentence in audit.audit_objections(run(), run(**changed)))


def test_another_random_stream_may_reorder_later_batches_but_not_drop_them():
    def batches(*contents):
        listed = [{"blake2b": content, "tensors": [["float32", size, 4]]} for content, size in contents]
        return run(loaders=[{**AUDIT["loaders"][0], "batches": listed}])

    before, reordered = batches(("a", 32), ("b", 16)), batches(("a", 32), ("c", 16))
    assert audit.audit_objections(before, reordered, stream=True) == []
    assert audit.audit_objections(before, reordered)
    assert audit.audit_objections(before, batches(("a", 32), ("b", 32)), stream=True)
    assert audit.audit_objections(before, batches(("z", 32), ("b", 16)), stream=True)


def test_the_first_loss_must_agree_to_rounding():
    assert audit.first_loss_objections(run((0.5, 0.4)), run((0.5000001, 0.3)), "none") == []
    assert "train.py:9" in audit.first_loss_objections(run((0.5,)), run((0.501,)), "rounding")[0]
    assert audit.first_loss_objections(run((0.5,)), run((0.501,)), "precision") == []


def test_nan_and_a_collapsed_loss_scale_are_objections():
    assert "nan at step 2" in audit.finite_objections(run((1.0, 0.9)), run((1.0, float("nan"))))[0]
    skipped = Trained(losses={"t:1": np.ones(10)}, skipped_steps=5)
    assert "collapsed" in audit.finite_objections(Trained(losses={}), skipped)[0]


def with_gradients(norms, zeros):
    told = [{"name": "gradients", "ok": True, "why": json.dumps({"norms": norms, "zeros": zeros})}]
    return Trained(losses={}, applied=told)


def test_gradients_that_underflow_are_an_objection():
    sound, lost = with_gradients([1.0, 2.0], [0.0, 0.0]), with_gradients([0.99, 1.97], [0.3, 0.4])
    assert "underflow" in audit.gradient_objections(sound, lost, "precision", stream=False)[0]
    assert "underflow" in audit.gradient_objections(sound, lost, "precision", stream=True)[0]


def test_gradients_of_another_size_are_an_objection_unless_the_masks_differ():
    sound, other = with_gradients([1.0, 2.0], [0.0, 0.0]), with_gradients([1.0, 2.5], [0.0, 0.0])
    assert audit.gradient_objections(sound, other, "precision", stream=False)
    assert not audit.gradient_objections(sound, other, "precision", stream=True)


def test_a_loss_that_comes_after_the_short_run_is_not_compared():
    nan = float("nan")
    long = Trained(losses={"d": np.array([0.5, 0.4]), "g": np.array([nan, nan, 0.7])})
    assert audit.reproducible(long, Trained(losses={"d": np.array([0.5])}))
    assert not audit.reproducible(long, Trained(losses={"d": np.array([0.6])}))
    assert not audit.reproducible(long, Trained(losses={})), "nothing was compared"


def test_two_runs_that_begin_differently_are_not_reproducible():
    assert audit.reproducible(run((0.5, 0.4)), run((0.5, 0.4)))
    assert not audit.reproducible(run((0.5, 0.4)), run((0.6, 0.4)))
