"""The masks have the right distribution, and the judge of masks rejects those that have not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name torch's documentation uses

from steptime.kernels.dropout import check_masks, dropout, native

SHAPE = (64, 50, 64)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(2024)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_our_masks_pass(p):
    report = check_masks(dropout, p, SHAPE, 4)
    assert report.ok, report


def test_our_masks_pass_at_ten_million_elements():
    report = check_masks(dropout, 0.1, (200, 50, 256), 4)
    assert report.elements >= 10**7
    assert report.p_value_rate >= 1e-4
    assert report.ok, report


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_our_masks_pass_in_other_dtypes(dtype):
    assert check_masks(dropout, 0.2, SHAPE, 2, dtype=dtype).ok


@pytest.mark.parametrize("shape", [SHAPE, (20_000,), (3, 5000), (200, 1, 100)])
def test_torchs_masks_pass(shape):
    report = check_masks(F.dropout, 0.1, shape, 4)
    assert report.ok, report


def test_a_right_dropout_is_seldom_rejected():
    """60 reports at alpha 0.05 with independent masks: more than 10 rejections have probability < 1e-3."""
    rejected = sum(not check_masks(dropout, 0.3, (40, 25, 10), 2, alpha=0.05).ok for _ in range(60))
    assert rejected <= 10


def _with_mask(make):
    def dropped(x, p):
        return x * make(x, p) / (1 - p)

    return dropped


def _repeated(x, p):
    torch.manual_seed(0)
    return F.dropout(x, p)


class _OtherMaskBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p):
        ctx.p = p
        return F.dropout(x, p)

    @staticmethod
    def backward(ctx, grad):
        return F.dropout(grad, ctx.p), None


def _block_repeats(x, p):
    """Masks that start over every 4096 elements, as two threads with one seed would make."""
    return (torch.rand(4096).repeat(x.numel() // 4096).view_as(x) >= p).to(x.dtype)


WRONG = {
    "silently off": (lambda x, p: x * 1.0, "rate"),
    "off without gradient": (lambda x, p: x.detach(), "rate"),
    "rate 0.11 for 0.10": (lambda x, p: F.dropout(x, 0.11), "rate"),
    "rate 0.11 scaled for 0.10": (lambda x, p: x * (torch.rand_like(x) >= 0.11) / (1 - p), "rate"),
    "the same mask every call": (_repeated, "successive calls"),
    "constant along a row": (_with_mask(lambda x, p: torch.rand(*x.shape[:-1], 1) >= p), "neighbouring"),
    "the same in every row": (_with_mask(lambda x, p: torch.rand(x.shape[-1]) >= p), "neighbouring"),
    "not scaled": (lambda x, p: x * (torch.rand_like(x) >= p), "not scaled"),
    "another mask backward": (_OtherMaskBackward.apply, "backward"),
    "repeats at 4096 elements": (_with_mask(_block_repeats), "some distance"),
    "exact number a row": (
        _with_mask(lambda x, p: torch.rand_like(x).argsort(-1) >= round(p * x.shape[-1])),
        "rows keep too unequal or too equal",
    ),
    "some columns more": (
        _with_mask(lambda x, p: torch.rand_like(x) >= p * torch.linspace(0.8, 1.2, x.shape[-1])),
        "columns",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_masks_are_rejected_for_the_right_reason(name):
    wrong, reason = WRONG[name]
    report = check_masks(wrong, 0.1, SHAPE, 4)
    assert not report.ok
    assert any(reason in said for said in report.reasons), report.reasons


def test_too_little_to_judge_is_refused():
    for p, shape, draws in ((0.1, (10, 10), 4), (0.0, SHAPE, 4), (0.1, SHAPE, 1)):
        with pytest.raises(ValueError, match="cannot be judged"):
            check_masks(dropout, p, shape, draws)


def test_the_threshold_is_p_to_32_bits():
    for p in (1e-6, 0.1, 1 / 3, 0.5, 0.999999):
        assert abs(native.threshold(p) / 2**32 - p) <= 2**-33
    assert native.threshold(1 - 1e-12) == 2**32 - 1
