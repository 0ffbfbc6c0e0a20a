from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from steptime.explain import CorrectedCell, OpRow, Utilisation
from steptime.report import svg
from steptime.report.charts_quality import equivalence, paired_seeds
from steptime.report.charts_remedies import remedy_dots
from steptime.report.charts_roofline import points, roofline
from steptime.report.charts_step import Bar, group_rows, step_bars
from steptime.report.tuning import Estimate, Loss, Remedy


def cell(resource, group, phase, ns):
    return CorrectedCell(resource=resource, group=group, phase=phase, ns=ns, low_ns=ns, high_ns=ns, events=1.0)


def bar(label, *cells):
    return Bar(label=label, ns=sum(c.ns for c in cells), cells=cells)


def drawn(markup):
    return ElementTree.fromstring(str(markup))


def widths(markup, kind="seg"):
    return [float(r.get("width")) for r in drawn(markup).iter("rect") if (r.get("class") or "").startswith(kind)]


BEFORE = bar(
    "before",
    cell("compute", "matmul", "forward", 30),
    cell("compute", "random", "forward", 50),
    cell("compute", "matmul", "backward", 15),
    cell("idle", "data", "data", 5),
)
AFTER = bar("after", cell("compute", "matmul", "forward", 30), cell("compute", "matmul", "backward", 20))


def test_parts_of_a_bar_are_as_wide_as_their_time_and_fill_it():
    parts = widths(step_bars([BEFORE], 402.0))
    # data comes first, then forward, then backward
    assert parts == pytest.approx([20, 120, 200, 60])


def test_before_and_after_stand_on_one_scale():
    parts = widths(step_bars([BEFORE, AFTER], 402.0))
    assert sum(parts[:4]) == pytest.approx(400)
    assert sum(parts[4:]) == pytest.approx(400 * 50 / 100)


def test_a_part_tells_its_nanoseconds_share_and_interval():
    tips = [title.text for title in drawn(step_bars([BEFORE], 900)).iter("title")]
    assert len(tips) == 4
    assert "random, forward\n50 ns, 50% of the step\ninterval 50 to 50 ns" in tips


def test_a_step_without_breakdown_is_one_bar_that_says_so():
    markup = step_bars([Bar(label="after", ns=1000)], 402)
    assert widths(markup) == [400.0]
    assert "not broken down" in str(markup)


def test_small_groups_are_added_up_and_not_dropped():
    small = [cell("compute", group, "forward", 2) for group in ("copy", "reduction", "embedding")]
    rows = group_rows([bar("step", cell("compute", "matmul", "forward", 994), *small)], 900)
    texts = [text.text for text in drawn(rows).iter("text")]
    assert "3 smaller groups" in texts
    assert sum(widths(rows, "seg f-copy") + widths(rows, "seg f-red") + widths(rows, "seg f-emb")) > 0


def remedy(name, predicted=None, measured=None):
    return Remedy(name=name, verdict="kept", why="", predicted=predicted, measured=measured, patch={}, basis="")


def test_a_prediction_and_its_measurement_share_an_axis():
    estimate = Estimate(s=0.010, low_s=0.008, high_s=0.012)
    root = drawn(remedy_dots([remedy("a", estimate, Estimate(s=0.010, low_s=0.009, high_s=0.011))], 900))
    (band,) = [r for r in root.iter("rect") if r.get("class") == "predicted"]
    (dot,) = list(root.iter("circle"))
    # the measured point equals the prediction, so it lies in the middle of the band
    assert float(dot.get("cx")) == pytest.approx(float(band.get("x")) + float(band.get("width")) / 2, abs=0.02)


def test_a_remedy_that_could_only_lose_and_was_not_tried_does_not_stretch_the_axis():
    lost = remedy("d", Estimate(s=-3.3, low_s=-3.4, high_s=-3.2))
    root = drawn(remedy_dots([remedy("a", Estimate(s=0.01, low_s=0.008, high_s=0.012)), lost], 900))
    assert len([r for r in root.iter("rect") if r.get("class") == "predicted"]) == 1
    assert remedy_dots([lost], 900) == ""


def test_a_loss_lies_left_of_zero():
    worse = remedy("b", measured=Estimate(s=-0.003, low_s=-0.004, high_s=-0.002))
    root = drawn(remedy_dots([worse, remedy("c", Estimate(s=0.01, low_s=0.0, high_s=0.02))], 900))
    (zero,) = [line for line in root.iter("line") if line.get("class") == "zero"]
    (dot,) = list(root.iter("circle"))
    assert float(dot.get("cx")) < float(zero.get("x1"))


def op(name, ns, flops, moved, dtype="float32"):
    return OpRow(
        name=name,
        caller=name,
        group="matmul",
        phase="forward",
        resource="compute",
        shapes=((4, 4),),
        dtype=dtype,
        calls_per_step=1,
        self_ns=ns,
        low_ns=ns,
        high_ns=ns,
        traced_self_ns=ns,
        flops=flops,
        bytes=moved,
        module="",
        source="",
    )


CEILING = Utilisation(
    work="arithmetic",
    dtype="float32",
    flops=1,
    bytes=1,
    compute_ns=1,
    achieved_flops_per_s=1.0,
    achieved_bytes_per_s=1.0,
    ceiling_flops_per_s=1e11,
    ceiling_bytes_per_s=1e10,
    intensity=1.0,
    ridge=10.0,
    side="memory",
)


def test_what_bounds_an_op_follows_the_roofline_formula():
    # 1 FLOP per byte: the slope allows 1e10 FLOP/s; 100: the roof of 1e11 holds
    low, high = points([op("low", 2000, 10_000, 10_000), op("high", 1000, 50_000, 500)], [CEILING])
    assert (low.side, low.roof, low.flops_per_s) == ("memory", 1e10, 5e9)
    assert (high.side, high.roof, high.flops_per_s) == ("compute", 1e11, 5e10)


def test_ops_without_formula_or_of_an_unprobed_dtype_get_no_bound():
    found = points([op("none", 10, None, 100), op("half", 10, 100, 100, dtype="bfloat16")], [CEILING])
    assert [(point.op.name, point.roof, point.side) for point in found] == [("half", None, None)]
    assert points([op("still", 0, 10, 10)], [CEILING]) == []


def test_the_area_of_a_circle_is_its_time():
    markup = roofline([op("a", 4000, 10_000, 100), op("b", 1000, 10_000, 900)], [CEILING], 900, 10_000)
    radii = [float(circle.get("r")) for circle in drawn(markup).iter("circle")]
    assert radii[0] / radii[1] == pytest.approx(2.0, rel=0.01)


def test_an_op_on_the_roof_is_drawn_on_the_roof():
    markup = roofline([op("a", 1000, 100_000, 100)], [CEILING], 900, 1000)  # 1e11 FLOP/s, the ceiling itself
    (circle,) = list(drawn(markup).iter("circle"))
    roofs = [line for line in drawn(markup).iter("line") if line.get("class") == "roof"]
    flat = [line for line in roofs if line.get("y1") == line.get("y2")]
    assert [float(line.get("y1")) for line in flat] == pytest.approx([float(circle.get("cy"))], abs=0.02)


def loss(**changes):
    values = {"seeds": (1, 2), "baseline": (0.5, 0.6), "tuned": (0.51, 0.58), "margin": 0.1}
    values |= {"difference": 0.0, "low": -0.05, "high": 0.05, "name": "loss", "verdict": "equivalent", "facts": {}}
    return Loss(**(values | changes))


def test_every_seed_is_a_pair_and_those_without_a_number_are_left_out():
    assert len(list(drawn(paired_seeds(loss(), 900)).iter("circle"))) == 4
    broken = loss(tuned=(0.51, float("nan")))
    assert len(list(drawn(paired_seeds(broken, 900)).iter("circle"))) == 2
    assert paired_seeds(loss(tuned=(float("inf"), float("nan"))), 900) == ""


def test_the_margin_and_the_interval_share_a_scale():
    root = drawn(equivalence(loss(), 900))
    (band,) = [rect for rect in root.iter("rect") if rect.get("class") == "margin-band"]
    interval = next(line for line in root.iter("line") if line.get("class") == "error strong")
    reach = float(interval.get("x2")) - float(interval.get("x1"))
    assert reach / float(band.get("width")) == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.1e-3, 0.0127), (0.6871, 0.6904), (0, 4e9), (5, 5)])
def test_tick_marks_are_round_and_inside(low, high):
    marks = svg.ticks(low, high)
    assert 1 <= len(marks) <= 12
    assert all(low - 1e-12 <= mark <= high + 1e-12 for mark in marks)
    if len(marks) > 1:
        step = marks[1] - marks[0]
        assert re.fullmatch(r"[125]\.0+e.*", f"{step:.6e}")


def test_a_text_is_shortened_to_its_room():
    assert svg.fit("matmul", 100) == "matmul"
    short = svg.fit("exposed communication: reduce_scatter_tensor", 120)
    assert short.endswith("…")
    assert svg.text_width(short) <= 120


def test_attributes_and_text_are_escaped():
    markup = svg.element("text", '<b a="1">', class_='x" onload="y')
    assert drawn(markup).text == '<b a="1">'
    assert drawn(markup).attrib == {"class": 'x" onload="y'}
