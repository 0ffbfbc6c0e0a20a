import resource
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steptime.errors import SteptimeError
from steptime.ledger.columns import read_columns, write_columns


def test_series_of_any_length_come_back_exactly(tmp_path):
    losses = np.array([0.1, np.nan, 1e-300, -np.inf])
    write_columns(tmp_path, rank=3, pid=42, series={"step_ns": np.array([2**53, 1]), "loss": losses, "empty": []})
    (process,) = read_columns(tmp_path).processes
    assert (process.rank, process.pid) == (3, 42)
    np.testing.assert_array_equal(process.series["loss"], losses)
    assert process.series["step_ns"].tolist() == [2**53, 1]


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.lists(st.floats(allow_nan=True), min_size=1, max_size=20),
        max_size=5,
    )
)
def test_whatever_is_written_is_read(series):
    with tempfile.TemporaryDirectory() as folder:
        write_columns(Path(folder), rank=0, pid=1, series=series)
        (process,) = read_columns(Path(folder)).processes
    assert set(process.series) == set(series)
    for name, values in series.items():
        np.testing.assert_array_equal(process.series[name], values)


def test_ranks_are_merged_in_numeric_order(tmp_path):
    for rank in (10, 9, 0):
        write_columns(tmp_path, rank=rank, pid=7, series={"x": [float(rank)]})
    found = read_columns(tmp_path)
    assert [process.rank for process in found.processes] == [0, 9, 10]
    assert [process.series["x"].tolist() for process in found.processes] == [[0.0], [9.0], [10.0]]


def test_another_tool_reads_the_file(tmp_path):
    import pyarrow.parquet as pq

    table = pq.read_table(write_columns(tmp_path, rank=0, pid=1, series={"a": [1.5, 2.5], "b": [3.5]}))
    assert table.to_pydict() == {"series": ["a", "a", "b"], "index": [0, 1, 0], "value": [1.5, 2.5, 3.5]}


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[: len(whole) // 2], lambda whole: b"", lambda whole: b"PAR1 rubbish PAR1"]
)
def test_a_broken_file_is_named_and_the_others_are_read(tmp_path, damage):
    write_columns(tmp_path, rank=0, pid=1, series={"a": [1.0]})
    broken = write_columns(tmp_path, rank=1, pid=2, series={"a": [2.0] * 100})
    broken.write_bytes(damage(broken.read_bytes()))
    found = read_columns(tmp_path)
    assert [process.rank for process in found.processes] == [0]
    assert len(found.dropped) == 1
    assert str(broken) in found.dropped[0]


def test_a_file_of_another_shape_or_name_is_dropped(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"series": ["a"], "index": [0]}), tmp_path / "0-1.parquet")
    (tmp_path / "notes.parquet").write_bytes(b"")
    assert [line.partition(":")[0].rpartition("/")[2] for line in read_columns(tmp_path).dropped] == [
        "0-1.parquet",
        "notes.parquet",
    ]


def test_a_missing_folder_holds_nothing(tmp_path):
    assert read_columns(tmp_path / "none").processes == ()


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(tmp_path):
    path = write_columns(tmp_path, rank=0, pid=1, series={"a": [1.0]})
    noise = np.random.default_rng(0).random(100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(SteptimeError, match="cannot be written"):
            write_columns(tmp_path, rank=0, pid=1, series={"a": noise})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert read_columns(tmp_path).processes[0].series["a"].tolist() == [1.0]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in ("/proc/steptime/columns", str(tmp_path / "file" / "columns")):
        with pytest.raises(SteptimeError, match="cannot be written"):
            write_columns(Path(folder), rank=0, pid=1, series={"a": [1.0]})


def test_a_table_is_no_series(tmp_path):
    with pytest.raises(SteptimeError, match="series grid: has 2 dimensions"):
        write_columns(tmp_path, rank=0, pid=1, series={"grid": np.zeros((2, 2))})
