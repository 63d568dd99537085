"""The numbers that C and Python share are the same on both sides."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np

from rca_llm.probes import format as layout
from rca_llm.readers import cupti_rows
from tests.native.conftest import NATIVE, Build, compile_c

_ROW_TYPES = {
    cupti_rows.ROW_KERNEL: "RowKernel",
    cupti_rows.ROW_COPY: "RowCopy",
    cupti_rows.ROW_MEMSET: "RowCopy",
    cupti_rows.ROW_API: "RowApi",
    cupti_rows.ROW_SYNC: "RowSync",
    cupti_rows.ROW_GRAPH: "RowGraph",
    cupti_rows.ROW_OVERHEAD: "RowOverhead",
    cupti_rows.ROW_EXTERNAL: "RowExternal",
    cupti_rows.ROW_JIT: "RowJit",
    cupti_rows.ROW_DEVICE: "RowDevice",
    cupti_rows.ROW_MARKER: "RowMarker",
}


def _numbers_in(header: str) -> dict[str, int]:
    """`#define`s and enumerators of a header that have a plain number."""
    text = (NATIVE / header).read_text()
    found = re.findall(r"(?:#define\s+)?(R[A-Z_]+)\s*=?\s+(0x[0-9A-Fa-f]+|\d+)u?\b", text)
    return {name: int(value, 0) for name, value in found}


def test_cells_and_header_follow_the_format() -> None:
    numbers = _numbers_in("format.h")
    for name in (
        "NAME",
        "BUFFER",
        "SPAN",
        "MORE",
        "END",
        "MARK",
        "NUMBER",
        "ANCHOR",
        "INFO",
        "GAP",
    ):
        assert numbers[f"RCA_{name}"] == getattr(layout, name), name
    for name in ("MORE", "ASYNC", "NVTX", "FLOAT", "ERROR"):
        assert numbers[f"RCA_FLAG_{name}"] == getattr(layout, f"FLAG_{name}"), name
    assert numbers["RCA_THREAD"] == layout.THREAD
    assert numbers["RCA_PENDING"] == layout.PENDING
    assert numbers["RCA_TAG"] == layout.TAG
    assert numbers["RCA_VERSION"] == layout.VERSION
    assert numbers["RCA_HEADER_BYTES"] == layout.HEADER_BYTES
    assert numbers["RCA_CELL_BYTES"] == layout.CELL_BYTES
    assert numbers["RCA_CONTROL_BYTES"] == layout.CONTROL_BYTES
    assert numbers["RCA_CONTROL_CHANGED_OFFSET"] == layout.CONTROL_CHANGED_OFFSET
    assert numbers["RCA_WRITER_NATIVE"] == layout.WRITER_NATIVE


def _offsets(tmp_path: Path, header: str, fields: list[tuple[str, str]]) -> list[tuple[int, int]]:
    """Offset and size of members of C structures, from the compiler."""
    lines = [
        f'printf("%zu %zu\\n", offsetof({kind}, {name}), sizeof((({kind} *)0)->{name}));'
        for kind, name in fields
    ]
    source = tmp_path / "offsets.c"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{NATIVE / header}"\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    compile_c(tmp_path / "offsets", [source])
    out = subprocess.run([str(tmp_path / "offsets")], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in out.stdout.splitlines()]
    return [(int(offset), int(size)) for offset, size in pairs]


def test_header_members_lie_where_the_format_says(built: Build, tmp_path: Path) -> None:
    names = list(layout.HEADER_FIELDS)
    found = _offsets(tmp_path, "format.h", [("Header", name) for name in names])
    offset = 8
    for name, code, (at, size) in zip(
        names, re.findall(r"\d*[A-Za-z]", layout.HEADER.format.lstrip("<")), found, strict=True
    ):
        assert at == offset, name
        offset += size
        assert code.endswith("s") == (size > 8), name


def _offset(dtype: np.dtype[np.void], name: str) -> int:
    """Where a field of a packed dtype begins."""
    names = list(dtype.names or ())
    before = names[: names.index(name)]
    return sum(np.zeros(1, dtype)[each].nbytes for each in before)


def test_rows_are_laid_out_alike(built: Build, tmp_path: Path) -> None:
    for kind, row in _ROW_TYPES.items():
        dtype = cupti_rows.ROWS[kind]
        names = list(dtype.names or ())
        found = _offsets(tmp_path, "rows.h", [(row, name) for name in names])
        for name, (at, size) in zip(names, found, strict=True):
            place = np.zeros(1, dtype)[name]
            assert (at, size) == (_offset(dtype, name), place.nbytes), (row, name)
        assert dtype.itemsize == found[-1][0] + found[-1][1], row


def test_row_kinds_are_numbered_alike() -> None:
    numbers = _numbers_in("rows.h")
    for kind in _ROW_TYPES:
        names = [name for name, value in numbers.items() if value == kind and name != "ROW_KINDS"]
        assert len(names) == 1
        assert getattr(cupti_rows, names[0]) == kind
