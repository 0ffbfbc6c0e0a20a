"""Bulky series of a run (step times, losses, block times) as Parquet, one file a process, merged when read.

A file is a long table `series: dictionary<string>, index: int64, value: float64`, so that series of any number and
length share it; an empty series leaves no trace. Integers are exact up to 2**53 (nanoseconds: 104 days).
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steptime.errors import SteptimeError
from steptime.ledger.home import write_whole

_FILE_NAME = re.compile(r"(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, kw_only=True)
class ProcessColumns:
    """The series that one process left: name -> float64 array, in index order."""

    rank: int
    pid: int
    series: Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The series of all processes of a run, by rank; `dropped` names each file that could not be read, and why."""

    processes: tuple[ProcessColumns, ...]
    dropped: tuple[str, ...]


def write_columns(
    folder: Path, *, rank: int, pid: int, series: Mapping[str, Sequence[float] | npt.NDArray[np.generic]]
) -> Path:
    """Write all series of one process as `<folder>/<rank>-<pid>.parquet`; a second call replaces the file.

    Raises:
        SteptimeError: a series is not one-dimensional, or the file cannot be written (nothing is left behind then).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in series.items()}
    for name, array in arrays.items():
        if array.ndim != 1:
            raise SteptimeError(f"has {array.ndim} dimensions instead of one", where=f"series {name}")
    lengths = [len(array) for array in arrays.values()]
    codes = np.repeat(np.arange(len(arrays), dtype=np.int32), lengths)
    table = pa.table(
        {
            "series": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(arrays), type=pa.string())),
            "index": pa.array(
                np.concatenate([np.arange(n, dtype=np.int64) for n in lengths] or [np.empty(0, np.int64)])
            ),
            "value": pa.array(np.concatenate([*arrays.values(), np.empty(0)])),
        }
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    path = folder / f"{rank}-{pid}.parquet"
    write_whole(path, buffer.getvalue())
    return path


def read_columns(folder: Path) -> Columns:
    """Read every process's file in `folder`; a broken one is skipped and named. A missing folder holds no series."""
    import pyarrow as pa

    processes: list[ProcessColumns] = []
    dropped: list[str] = []
    for path in sorted(folder.glob("*.parquet")):
        name = _FILE_NAME.fullmatch(path.name)
        if name is None:
            dropped.append(f"{path}: not named <rank>-<pid>.parquet")
            continue
        try:
            series = _read_file(path)
        # pyarrow raises its own errors, plain OSError and KeyError for the various ways a file can be broken.
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            dropped.append(f"{path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            continue
        processes.append(ProcessColumns(rank=int(name[1]), pid=int(name[2]), series=series))
    processes.sort(key=lambda process: (process.rank, process.pid))
    return Columns(processes=tuple(processes), dropped=tuple(dropped))


def _read_file(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    import pyarrow.parquet as pq

    # memory_map off: a mapped file that another process truncates would kill this one with SIGBUS.
    table = pq.read_table(path, columns=["series", "index", "value"], memory_map=False)
    encoded = table["series"].cast("string").combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    index, value = table["index"].to_numpy(), table["value"].to_numpy()
    order = np.lexsort((index, codes))
    bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    names = encoded.dictionary.to_pylist()
    return {name: value[order[bounds[at] : bounds[at + 1]]] for at, name in enumerate(names)}
