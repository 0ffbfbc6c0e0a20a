from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from steptime.errors import SteptimeError
from steptime.report import render_report


class Page(HTMLParser):
    """A page as a reader has it, by the standard library's parser: text without style and script, tables, tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._parts: list[str] = []
        self._silent = 0
        self._label = ""
        self._cell: list[str] | None = None
        self.feed(page)

    @property
    def text(self) -> str:
        """Text nodes in order; non-breaking spaces are spaces to a reader."""
        return " ".join("".join(self._parts).replace("\u00a0", " ").split())

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    def handle_starttag(self, tag, attrs):
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        if tag in ("style", "script"):
            self._silent += 1
        if tag == "div" and attributes.get("class") == "scroll":
            self._label = attributes["aria-label"]
            self.tables[self._label] = []
        if tag == "tr":
            self.tables[self._label].append([])
        if tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("style", "script"):
            self._silent -= 1
        if tag in ("td", "th") and self._cell is not None:
            self.tables[self._label][-1].append(" ".join("".join(self._cell).replace("\u00a0", " ").split()))
            self._cell = None
        self._parts.append(" ")

    def handle_data(self, data):
        if self._silent:
            return
        self._parts.append(data)
        if self._cell is not None:
            self._cell.append(data)


@pytest.fixture
def full(explanation, tuning, after):
    return render_report(explanation, tuning, None, after)


def test_the_page_opens_with_the_ratio_its_interval_and_the_quality_verdict(explanation, tuning):
    tuning["speedup"] = {"ratio": 2.871, "low": 2.79, "high": 2.949}
    tuning["step"] = {"before_s": 0.118203, "after_s": 0.04117}
    text = Page(render_report(explanation, tuning)).text
    said = "41.2 ms a step instead of 118 ms: 2.87× [2.79, 2.95] as fast. Quality: equivalent (5 paired seeds)."
    assert said in text[: text.index("Where the step goes")]


def test_a_ratio_whose_interval_holds_one_is_no_speed_up(tuning):
    tuning["speedup"] = {"ratio": 1.02, "low": 0.98, "high": 1.06}
    text = Page(render_report(None, tuning)).text
    assert "no speed-up is proven" in text
    assert "as fast" not in text


def test_a_ratio_that_no_run_confirmed_is_not_published(explanation, tuning):
    tuning["speedup"] |= {"ratio": 1.0, "low": 1.0, "high": 1.0, "confirmed": False}
    text = Page(render_report(explanation, tuning)).text
    assert "4 of 8 remedies kept; no run has confirmed them together." in text
    assert "1.00×" not in text


def test_the_findings_of_a_tune_result_serve_an_explanation_without(explanation, tuning):
    tuning["findings"], explanation["findings"] = explanation["findings"], []
    assert tuning["findings"][0]["title"] in Page(render_report(explanation, tuning)).text


def test_a_step_alone_shows_its_interval_and_sample_size(explanation):
    explanation["step"] |= {"low_ns": 39_500_000, "high_ns": 41_000_000, "n": 60}
    text = Page(render_report(explanation)).text
    assert "40.0 ms [39.5, 41.0], median of 60" in text[: text.index("Where the step goes")]


def test_every_remedy_appears_with_its_verdict_and_reason(full, tuning):
    text = Page(full).text
    for remedy in tuning["remedies"]:
        assert remedy["name"] in text
        assert remedy["why"][1:] in text
    for verdict in ("kept", "rejected", "undecided", "not tried"):
        assert text.count(verdict) >= sum(remedy["verdict"] == verdict for remedy in tuning["remedies"])


def test_kept_remedies_come_first_and_the_untried_in_a_table(tuning):
    tuning["remedies"].reverse()
    page = Page(render_report(None, tuning))
    rows = page.tables["Not tried, and why"][1:]
    assert [row[0] for row in rows] == ["huge pages for the allocator", "oneDNN off"]
    assert rows[0][1:3] == ["400 µs [100, 800]", "Upper bound 2.0% of the step is below 3%."]
    places = [
        page.text.index(f"{name} {verdict}")
        for name, verdict in (
            ("dropout masks in parallel", "kept"),
            ("attention on its fused path", "kept"),
            ("autocast to bf16", "rejected"),
        )
    ]
    assert places == sorted(places)


def test_the_prediction_error_is_that_of_the_seconds_saved(tuning):
    (first, *_) = tuning["remedies"]
    first |= {"predicted_s": 0.012, "low_s": 0.011, "high_s": 0.013}
    first |= {"measured_s": 0.010, "measured_low_s": 0.009, "measured_high_s": 0.011}
    assert "Measured 10.0 ms [9.0, 11.0]; the prediction is off by +20%." in Page(render_report(None, tuning)).text


def test_no_error_is_printed_where_nothing_was_saved(tuning):
    tuning["remedies"] = [remedy for remedy in tuning["remedies"] if remedy["verdict"] in ("rejected", "undecided")]
    assert "off by" not in Page(render_report(None, tuning)).text


def test_the_cells_shown_add_up_to_the_step_to_the_nanosecond(full, explanation, after):
    for name, record in (("before", explanation), ("after", after)):
        head, *rows, total = Page(full).tables[f"The cells {name} in ns, with their sums"]
        values = [[int(value.replace(",", "")) if value else 0 for value in row[1:]] for row in rows]
        whole = [int(value.replace(",", "")) for value in total[1:]]
        assert whole[-1] == record["step"]["median_ns"]
        assert [sum(column) for column in zip(*values, strict=True)] == whole
        assert all(sum(row[:-1]) == row[-1] for row in values)
        for phase, ns in zip(head[1:-1], whole, strict=False):
            assert ns == sum(cell["ns"] for cell in record["corrected"] if cell["phase"] == phase)


def test_every_finding_is_there_with_the_cells_and_ops_behind_it(full, explanation):
    page = Page(full)
    for finding in explanation["findings"]:
        assert finding["title"] in page.text
    evidence = page.tables["Cells behind the finding"]
    cells = explanation["findings"][-1]["cells"]  # the parser keeps the last table of a name
    assert sorted(row[1] for row in evidence[1:]) == sorted(cell["phase"] for cell in cells)
    assert {row[0] for row in evidence[1:]} == {cell["group"] for cell in cells}


def test_ops_stand_longest_first(full, explanation):
    rows = Page(full).tables["Ops"][1:]
    assert len(rows) == len(explanation["ops"])
    assert "7.00 ms" in rows[0][2]
    assert "torch/nn/functional.py:1451" in rows[0][0]


def test_an_op_that_layers_repeat_is_one_row_with_the_sums(explanation):
    op = explanation["ops"][0] | {
        "self_ns": 3_000_000,
        "low_ns": 2_000_000,
        "high_ns": 4_000_000,
        "calls_per_step": 1.0,
    }
    op |= {"flops": 6_000_000, "bytes": 4}
    explanation["ops"] = [op | {"module": f"layers.{index}"} for index in range(3)]
    (row,) = Page(render_report(explanation)).tables["Ops"][1:]
    assert row[0].startswith("aten::bernoulli_ layers.0 and 2 more")
    assert row[2] == "9.00 ms [6.00, 12.00]"
    assert row[4] == "3"
    assert row[6] == "2.00 GFLOP/s"  # 18e6 FLOP in 9e-3 s


def test_traced_steps_that_were_faster_are_not_called_inflated(explanation):
    explanation |= {"inflation": 0.61, "traced_step_ns": 24_000_000}
    text = Page(render_report(explanation)).text
    assert "Traced steps were not slower than untraced ones (24.0 ms against 40.0 ms" in text
    assert "Tracing made the step" not in text


def test_the_command_is_shown_without_a_ledger_too(explanation):
    explanation["facts"]["process"] = {"argv": ["python", "my train.py"], "cwd": "/home/a", "python": "3.12.1"}
    text = Page(render_report(explanation)).text
    assert "python 'my train.py'" in text
    assert "3.12.1" in text


def test_what_is_missing_is_said_with_what_would_bring_it(explanation):
    for row in explanation["utilisation"]:
        row |= {"ceiling_flops_per_s": None, "ceiling_bytes_per_s": None, "ridge": None, "side": None}
    explanation |= {"mfu": None, "findings": [], "inflation": None}
    text = Page(render_report(explanation)).text
    assert "MFU is not known" in text
    assert text.count("run steptime probe") == 2  # at the roofline and at the MFU
    assert "Only a trace is known" in text
    assert "No findings are recorded" in text
    assert "No provenance was recorded" in text
    assert "None" not in text
    assert "nan" not in text.split()


def test_an_explanation_alone_has_no_word_of_tuning(explanation):
    text = Page(render_report(explanation)).text
    assert explanation["verdict"] in text
    assert "Predicted and measured" not in text
    assert "plan.toml" not in text


def test_a_tune_result_alone_says_that_the_step_was_not_broken_down(tuning):
    assert "pass the JSON of steptime explain as well" in Page(render_report(None, tuning)).text


def test_an_empty_tune_result_says_that_nothing_was_kept(explanation):
    text = Page(render_report(explanation, {"remedies": []})).text
    assert "No change was proven to speed this step up." in text
    assert "No remedy applies to this step." in text
    assert "The plan is empty: nothing was kept." in text


def test_ranks_are_listed_when_there_are_several(explanation):
    (row,) = explanation["ranks"]
    other = row | {"rank": 1, "exposed_communication_ns": row["traced_step_ns"] // 4}
    explanation["ranks"] = [row, other]
    rows = Page(render_report(explanation)).tables["Ranks"]
    assert [cells[0] for cells in rows[1:]] == ["0", "1"]
    assert rows[2][3].endswith("(25%)")


def test_communication_and_copies_have_their_own_parts(explanation):
    cell = explanation["corrected"][0]
    extra = {"resource": "exposed_communication", "group": "all_reduce", "phase": "backward", "ns": 5_000_000}
    explanation["corrected"].append(cell | extra | {"low_ns": 4_000_000, "high_ns": 6_000_000})
    explanation["step"]["median_ns"] += 5_000_000
    page = render_report(explanation)
    assert "exposed communication: all reduce" in Page(page).text
    assert "exposed: all reduce" in Page(page).text
    assert "url(#hatch)" in page


HOSTILE = "<script>alert('x')</script><img src=x onerror=y>\" ' & {{ 7*7 }}"


def test_nothing_a_user_wrote_becomes_markup(explanation, tuning, after):
    for op in explanation["ops"]:
        op |= {"name": HOSTILE, "module": HOSTILE, "source": HOSTILE, "dtype": HOSTILE}
    explanation["gaps"][0]["source"] = HOSTILE
    explanation["stacks"] = [[HOSTILE, 0.5]]
    explanation["findings"] = [
        {"title": HOSTILE, "detail": HOSTILE, "group": "random", HOSTILE: HOSTILE, "sources": [HOSTILE]}
    ]
    explanation |= {"verdict": HOSTILE, "notes": [HOSTILE], "dropped": [HOSTILE]}
    explanation["facts"] |= {"device": HOSTILE, "framework": HOSTILE, "loader": {HOSTILE: HOSTILE}}
    explanation["corrected"][0]["group"] = HOSTILE
    explanation["corrected"][-1]["group"] = HOSTILE
    tuning["remedies"][0] |= {
        "name": HOSTILE,
        "verdict": HOSTILE,
        "why": HOSTILE,
        "basis": HOSTILE,
        "patch": {HOSTILE: HOSTILE},
    }
    tuning["quality"] |= {"verdict": HOSTILE, "why": HOSTILE, HOSTILE: HOSTILE}
    tuning["quality"]["losses"][0] |= {"name": HOSTILE, "verdict": HOSTILE}
    tuning |= {"plan": HOSTILE, "diff": f"+{HOSTILE}"}
    provenance = {"command": ["python", HOSTILE], "environment": {HOSTILE: HOSTILE}, "created": HOSTILE}
    html = render_report(explanation, tuning, provenance, after)
    page = Page(html)
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert page.text.count("<script>alert('x')</script>") > 20
    assert "49" not in page.text.split()


def test_the_file_loads_nothing(full):
    assert not re.search(r"https?:|@import|url\((?!#)|srcset|<link(?! rel=\"icon\" href=\"data:)", full)
    sources = [
        value for _, attributes in Page(full).tags for name, value in attributes.items() if name in ("src", "href")
    ]
    assert sources == ["data:,"]


def test_the_file_stays_small_also_with_thousands_of_ops(explanation, tuning, after):
    explanation["ops"] = [
        op | {"self_ns": 1 + index, "shapes": [[index]]} for index in range(200) for op in explanation["ops"]
    ]
    page = render_report(explanation, tuning, None, after)
    assert len(page.encode()) < 500_000
    assert "The 25 longest of" in Page(page).text


def test_losses_that_are_no_numbers_are_said_and_not_drawn(tuning):
    tuning["quality"]["losses"][0] |= {
        "tuned": [float("nan")] * 5,
        "difference": float("nan"),
        "low": None,
        "high": None,
    }
    text = Page(render_report(None, tuning)).text
    assert "5 pairs are not drawn: a loss in them is not a finite number." in text


def test_the_plan_may_be_a_text_or_an_object(tuning):
    tuning["plan"] = {"kernels": {"dropout": "parallel", "attention": None}}
    assert '[kernels] dropout = "parallel"' in Page(render_report(None, tuning)).text


def test_records_that_cannot_be_read_are_one_clear_error(explanation, tuning):
    with pytest.raises(SteptimeError, match="nothing to report"):
        render_report(None, None)
    with pytest.raises(SteptimeError, match="version 99"):
        render_report(explanation | {"version": 99})
    with pytest.raises(SteptimeError, match="not a tune result"):
        render_report(None, tuning | {"speedup": {"ratio": "fast"}})
