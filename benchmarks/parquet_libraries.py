"""Compares Parquet libraries: what they weigh, how fast they are, and whether they are exact.

Each library is installed into a virtual environment of its own. A table of 1,080,000 rows and 12
columns, as a trace's kernels are, goes from NumPy to a zstd file and back; medians with the lowest
and highest of the repeats. Prints a Markdown table.

    python benchmarks/parquet_libraries.py [--folder DIR] [--repeats N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROWS = 1_080_000
UNKNOWN = -(2**63)

LIBRARIES = {
    "arro3-io": ["arro3-io", "arro3-core", "numpy"],
    "pyarrow": ["pyarrow", "numpy"],
    "fastparquet": ["fastparquet", "pandas", "numpy"],
    "polars": ["polars", "numpy"],
    "duckdb": ["duckdb", "pandas", "numpy"],
}
"""What is installed for each library; NumPy and pandas are in the core anyway."""

CORE = {"numpy", "pandas", "pip", "setuptools", "wheel", "python_dateutil", "tzdata", "six", "pytz"}
"""Distributions that do not count as the library's weight."""

MODULES = {"arro3-io": ["arro3.core", "arro3.io"], "pyarrow": ["pyarrow", "pyarrow.parquet"]}

Columns = dict[str, Any]


def sample() -> tuple[Columns, dict[str, tuple[list[str], Any]]]:
    """Ten numeric columns (two with unknown rows) and two of texts as (vocabulary, codes)."""
    import numpy as np

    random = np.random.default_rng(7)
    start = 1_796_000_000_000_000_000 + np.cumsum(random.integers(500, 40_000, ROWS))
    unknown = random.random(ROWS) < 0.1
    columns: Columns = {
        "start": start,
        "end": start + random.integers(900, 30_000, ROWS),
        "correlation": np.arange(ROWS),
        "node": np.where(unknown, UNKNOWN, random.integers(2**62, 2**63 - 1, ROWS)),
        "bytes": np.where(~unknown, UNKNOWN, 2 ** random.integers(0, 30, ROWS)),
        "request": random.integers(0, 64, ROWS),
    }
    for name, high in {"stream": 8, "grid": 4096, "block": 1024, "registers": 256}.items():
        columns[name] = random.integers(0, high, ROWS).astype(np.int32)
    texts = {
        "name": ([f"void kernel_{i}<float, {i % 7}>(Args)" for i in range(300)], 300),
        "class": ([f"compute.{i}" for i in range(12)], 12),
    }
    coded = {
        name: (words, random.integers(0, count, ROWS).astype(np.int32))
        for name, (words, count) in texts.items()
    }
    return columns, coded


def unknown_of(values: Any) -> int:
    """What stands for null in a column of this type."""
    return UNKNOWN if values.itemsize == 8 else -1


# --- One pair of functions a library: columns to a file, and back ------------------------------


Way = tuple[Callable[[], None], Callable[[], Columns]]
"""What writes the columns to a file, and what reads the numeric ones back."""


def arro3(path: Path, columns: Columns, coded: Columns) -> Way:
    """Through rca_llm.columns, as the core does."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from rca_llm import columns as parquet

    def write() -> None:
        made = {name: parquet.numbers(v, v == UNKNOWN) for name, v in columns.items()}
        made |= {name: parquet.texts(words, codes) for name, (words, codes) in coded.items()}
        parquet.write(path, made, rising=["start", "end", "correlation"])

    def read() -> Columns:
        found = parquet.read(path)
        for name in coded:
            parquet.to_texts(found[name])
        return {name: parquet.to_numbers(found[name], UNKNOWN) for name in columns}

    return write, read


def pyarrow(path: Path, columns: Columns, coded: Columns) -> Way:
    """With the same encodings as arro3."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rising = ["start", "end", "correlation"]

    def write() -> None:
        made = {name: pa.array(v, mask=v == UNKNOWN) for name, v in columns.items()}
        for name, (words, codes) in coded.items():
            made[name] = pa.DictionaryArray.from_arrays(codes, words)
        pq.write_table(
            pa.table(made),
            path,
            compression="zstd",
            use_dictionary=[name for name in made if name not in rising],
            column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        )

    def read() -> Columns:
        table = pq.read_table(path)
        for name in coded:
            whole = table[name].combine_chunks()
            whole.indices.to_numpy(), whole.dictionary.to_pylist()
        return {
            name: table[name].fill_null(unknown_of(values)).to_numpy()
            for name, values in columns.items()
        }

    return write, read


def frame(columns: Columns, coded: Columns) -> Any:
    """A pandas frame with nullable integers and categories."""
    import pandas as pd

    made: Columns = {
        name: pd.arrays.IntegerArray(values.copy(), values == UNKNOWN)
        for name, values in columns.items()
    }
    for name, (words, codes) in coded.items():
        made[name] = pd.Categorical.from_codes(codes, words)
    return pd.DataFrame(made)


def from_frame(table: Any, columns: Columns) -> Columns:
    """The numeric columns of a pandas frame, unknown where null."""
    return {
        name: table[name].fillna(UNKNOWN).to_numpy(columns[name].dtype)
        if table[name].hasnans
        else table[name].to_numpy(columns[name].dtype)
        for name in columns
    }


def fastparquet(path: Path, columns: Columns, coded: Columns) -> Way:
    """Through a pandas frame, its only way."""
    import fastparquet as fp

    def write() -> None:
        fp.write(str(path), frame(columns, coded), compression="ZSTD")

    return write, lambda: from_frame(fp.ParquetFile(str(path)).to_pandas(), columns)


def polars(path: Path, columns: Columns, coded: Columns) -> Way:
    """Through nullable series and an Enum."""
    import polars as pl

    def write() -> None:
        made: Columns = {}
        for name, values in columns.items():
            plain = pl.Series(name, values)
            made[name] = plain.set(plain == UNKNOWN, None) if values.itemsize == 8 else plain
        for name, (words, codes) in coded.items():
            made[name] = pl.Series(words, dtype=pl.Enum(words)).gather(codes)
        pl.DataFrame(made).write_parquet(path, compression="zstd", compression_level=1)

    def read() -> Columns:
        table = pl.read_parquet(path)
        for name in coded:
            table[name].to_physical().to_numpy(), table[name].dtype.categories.to_list()
        return {
            name: table[name].fill_null(unknown_of(values)).to_numpy()
            for name, values in columns.items()
        }

    return write, read


def duckdb(path: Path, columns: Columns, coded: Columns) -> Way:
    """Through a pandas frame, and masked arrays back."""
    import duckdb as db

    def write() -> None:
        kernels = frame(columns, coded)  # noqa: F841 (named in the query)
        db.sql("from kernels").write_parquet(str(path), compression="zstd")

    def read() -> Columns:
        import numpy as np

        found = db.read_parquet(str(path)).fetchnumpy()
        return {
            name: np.ma.filled(found[name], unknown_of(values)) for name, values in columns.items()
        }

    return write, read


WAYS = {
    "arro3-io": arro3,
    "pyarrow": pyarrow,
    "fastparquet": fastparquet,
    "polars": polars,
    "duckdb": duckdb,
}


# --- Measuring ---------------------------------------------------------------------------------


def timed(work: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each repeat, after one that does not count."""
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds


def measure(library: str, repeats: int) -> dict[str, Any]:
    """Write and read times, file size and exactness; runs in the library's own environment."""
    import numpy as np

    columns, coded = sample()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write, read = WAYS[library](path, columns, coded)
        result: dict[str, Any] = {"write": timed(write, repeats), "read": timed(read, repeats)}
        result["bytes"] = path.stat().st_size
        found = read()
    result["wrong"] = [n for n, v in columns.items() if not np.array_equal(found[n], v)]
    return result


def weight(python: Path) -> float:
    """MB (10^6 bytes) that the library and what it pulls in add to the core, as recorded."""
    code = (
        "import importlib.metadata as m, json; print(json.dumps({d.metadata['Name']: sum("
        "f.locate().stat().st_size for f in d.files or [] if f.locate().is_file())"
        " for d in m.distributions()}))"
    )
    sizes = json.loads(subprocess.check_output([python, "-c", code], text=True))
    return sum(s for name, s in sizes.items() if name.replace("-", "_") not in CORE) / 1e6


def import_ms(python: Path, library: str, repeats: int) -> list[float]:
    """Milliseconds to import the library after NumPy, in fresh processes."""
    modules = ", ".join(MODULES.get(library, [library]))
    code = f"import numpy, time; t = time.perf_counter(); import {modules}; "
    code += "print((time.perf_counter() - t) * 1e3)"
    command = [python, "-c", code]
    subprocess.check_output(command)
    return [float(subprocess.check_output(command)) for _ in range(repeats)]


def installed(library: str, folder: Path) -> Path:
    """The Python of an environment that holds the library; made where it is missing."""
    python = folder / library / "bin" / "python"
    if not python.exists():
        venv.create(folder / library, with_pip=True)
    command = [python, "-m", "pip", "install", "--quiet", *LIBRARIES[library]]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return python


def row(library: str, folder: Path, repeats: int) -> str:
    """The table's line for a library."""
    python = installed(library, folder)
    command = [python, __file__, "--child", library, "--repeats", str(repeats)]
    result = json.loads(subprocess.check_output(command, text=True))
    version = subprocess.check_output(
        [python, "-c", f"from importlib.metadata import version; print(version({library!r}))"],
        text=True,
    ).strip()
    cells = [
        f"{library} {version}",
        f"{weight(python):.0f}",
        spread(import_ms(python, library, repeats), 1, 0),
        spread(result["write"], 1, 2),
        spread(result["read"], 1, 2),
        f"{result['bytes'] / 1e6:.1f}",
        "yes" if not result["wrong"] else "no: " + ", ".join(result["wrong"]),
    ]
    return "| " + " | ".join(cells) + " |"


def spread(values: Sequence[float], factor: float, digits: int) -> str:
    """A median with the lowest and the highest value."""
    low, mid, high = (factor * f(values) for f in (min, median, max))
    return f"{mid:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def main() -> None:
    """Measure every library and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, help="where the environments are kept")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--child", choices=LIBRARIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.repeats)))
        return
    print("| library | MB | import, ms | write, s | read, s | file, MB | exact |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for library in LIBRARIES:
            print(row(library, options.folder or Path(scratch), options.repeats), flush=True)


if __name__ == "__main__":
    main()
