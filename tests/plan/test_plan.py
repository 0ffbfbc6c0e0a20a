from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steptime.errors import SteptimeError
from steptime.plan import FieldDoc, Plan, ScriptFacts
from steptime.plan.reference import with_reference

REPOSITORY = Path(__file__).resolve().parents[2]

VALUES = {
    "process.threads": st.integers(1, 64),
    "process.affinity": st.lists(st.integers(0, 7), min_size=1, max_size=4),
    "process.allocator": st.sampled_from(["jemalloc", "tcmalloc", "large_pools"]),
    "process.mkldnn": st.just(False),
    "precision.autocast": st.sampled_from(["bf16", "fp16"]),
    "compiler.mode": st.sampled_from(["default", "reduce-overhead", "max-autotune"]),
    "data.prefetch_thread": st.integers(1, 8),
    "data.persistent_workers": st.booleans(),
    "kernels.dropout": st.just("parallel"),
    "collectives.bucket_cap_mb": st.floats(0.5, 500, allow_nan=False),
}
PATCHES = st.fixed_dictionaries({}, optional=VALUES)


@given(PATCHES)
@settings(max_examples=60, deadline=None)
def test_a_plan_survives_its_file_and_the_file_is_the_same_each_time(patch):
    import tempfile

    plan = Plan().with_patch(patch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        plan.to_toml(path)
        assert Plan.from_toml(path) == plan
        first = path.read_bytes()
        plan.to_toml(path)
        assert path.read_bytes() == first
        assert [one.name for one in Path(folder).iterdir()] == ["plan.toml"]


@given(PATCHES)
@settings(max_examples=60, deadline=None)
def test_the_difference_is_the_patch_and_the_agent_is_told_the_same(patch):
    plan = Plan().with_patch(patch)
    assert plan.difference() == patch
    assert {f"{s}.{n}": v for s, fields in plan.agent_json().items() for n, v in fields.items()} == patch
    assert Plan.parse(plan.agent_json()) == plan


def test_the_file_holds_the_version_and_what_is_not_default_under_a_comment():
    text = Plan().with_patch({"kernels.dropout": "parallel"}).toml()
    assert tomllib.loads(text) == {"version": 1, "kernels": {"dropout": "parallel"}}
    assert text.startswith("# ")
    assert "steptime run --plan plan.toml" in text


def test_none_takes_a_field_back():
    plan = Plan().with_patch({"process.threads": 2, "process.gc": "freeze"})
    assert plan.with_patch({"process.threads": None}).agent_json() == {"process": {"gc": "freeze"}}


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ('[precision]\nautocast = "fp8"', "plan.toml: precision.autocast is 'fp8'; one of none, bf16, fp16"),
        (
            '[precision]\nautocst = "bf16"',
            "plan.toml: precision.autocst is not a field of the plan; did you mean autocast?",
        ),
        ("[presision]\nx = 1", "plan.toml: presision is not a section of the plan; did you mean precision?"),
        ("[process]\nthreads = 0", "plan.toml: process.threads is 0; at least 1"),
        ('[process]\nthreads = "2"', "plan.toml: process.threads is '2'; a whole number"),
        ("[process]\nthreads = true", "plan.toml: process.threads is true; a whole number"),
        ("[data]\npin_memory = 1", "plan.toml: data.pin_memory is 1; true or false"),
        ("[collectives]\nbucket_cap_mb = 0", "plan.toml: collectives.bucket_cap_mb is 0; more than 0"),
    ],
)
def test_an_error_names_the_field_and_the_mend(tmp_path, body, line):
    path = tmp_path / "plan.toml"
    path.write_text(f"version = 1\n{body}\n")
    with pytest.raises(SteptimeError) as raised:
        Plan.from_toml(path)
    assert str(raised.value) == line


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("version = 2\n", "version is 2; this steptime reads version 1; upgrade steptime"),
        ("version = true\n", "version is True; this steptime reads version 1"),
        ("", "version is missing; add the line version = 1"),
        ("version = ", "not valid TOML"),
        (b"\xff\xfe\x00", "not valid TOML"),
    ],
)
def test_other_versions_and_broken_files_are_refused(tmp_path, text, part):
    path = tmp_path / "plan.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SteptimeError, match=part):
        Plan.from_toml(path)


def test_a_file_that_cannot_be_read_or_written_is_one_line(tmp_path):
    with pytest.raises(SteptimeError, match="cannot be read"):
        Plan.from_toml(tmp_path / "none.toml")
    with pytest.raises(SteptimeError, match="cannot be written"):
        Plan().to_toml(tmp_path / "no" / "plan.toml")


@pytest.mark.parametrize("name", ["precision.autocst", "autocast", "nothing.at_all", ""])
def test_a_patch_of_an_unknown_name_is_refused(name):
    with pytest.raises(SteptimeError, match="is not a field of the plan"):
        Plan().with_patch({name: "bf16"})


def test_a_plan_is_frozen_and_hashable():
    plan = Plan().with_patch({"process.affinity": [0, 1]})
    with pytest.raises(Exception, match="frozen"):
        plan.process.threads = 3  # type: ignore[misc]
    assert hash(plan) == hash(Plan().with_patch({"process.affinity": [0, 1]}))


def test_every_field_is_documented():
    fields = Plan.fields()
    assert all(
        isinstance(one, FieldDoc) and len(one.doc) > 20 and one.applies_to in ("script", "engine", "both")
        for one in fields
    )
    assert len({(one.section, one.name) for one in fields}) == len(fields)


def test_the_reference_page_is_what_the_code_says():
    page = (REPOSITORY / "docs" / "plan.md").read_text("utf-8")
    assert with_reference(page) == page, "write it anew: steptime.plan.reference.write(Path('docs/plan.md'))"


@pytest.mark.parametrize(
    ("patch", "facts", "part"),
    [
        ({"optimizer.implementation": "fused"}, {"float_parameters": False}, "floating point"),
        ({"collectives.static_graph": True}, {"ddp": False}, "DistributedDataParallel"),
        ({"data.pin_memory": True}, {"device": "cpu"}, "accelerator"),
        ({"compiler.mode": "reduce-overhead"}, {"device": "cpu"}, "CUDA"),
        ({"compiler.mode": "default"}, {"can_compile": "no Python headers"}, "no Python headers"),
        ({"compiler.scope": "blocks"}, {}, "compiler.mode is none"),
        ({"kernels.dropout": "parallel"}, {"device": "cuda"}, "CPU"),
        ({"kernels.gelu": "fast"}, {"device": "cuda"}, "CPU"),
        ({"process.threads": 4}, {"cores": 4, "local_ranks": 2}, "4 cores"),
        ({"process.affinity": [9]}, {"cores": 2}, "no CPU 9"),
        ({"process.affinity": []}, {}, "no core"),
        ({"data.workers": 2}, {"iterable_dataset": True}, "IterableDataset"),
        ({"data.persistent_workers": True}, {"workers": 0}, "data.workers"),
    ],
)
def test_a_plan_that_cannot_hold_says_why(patch, facts, part):
    (line,) = Plan().with_patch(patch).check(ScriptFacts(**facts))
    assert part in line
    assert line.startswith(next(iter(patch)))


def test_what_is_not_known_is_not_objected_to():
    plan = Plan().with_patch({"collectives.static_graph": True, "data.pin_memory": True, "compiler.mode": "default"})
    assert plan.check(ScriptFacts()) == []
    assert Plan().check(ScriptFacts(device="cpu", ddp=False, cores=1)) == []
