"""Parquet exports hold what the SQLite export of the same report holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rca_llm.errors import UnreadableInput
from rca_llm.readers import nsys
from rca_llm.readers.files import source
from rca_llm.trace import TABLES, Timeline
from tests.nsys_export import PID, TID, Export, global_id, to_parquet


def export() -> Export:
    """One of much."""
    made = Export()
    made.kernel("void gemm<float>", 100, 200, 5)
    made.kernel("norm", 210, 220, 5, graphNodeId=9)
    made.copy(200, 300, kind=1, memory=(0, 2))
    made.api("cudaLaunchKernel_v7000", 50, 60, 5)
    made.nvtx(59, 10, 400, text="prefill", domainId=0)
    made.nvtx(59, 20, 30, text="aten::mm, seq = 4, op_id = 12", domainId=0)
    made.nvtx(59, 40, None, textId=made.string("registered"), domainId=0)
    made.add("PROCESSES", globalPid=global_id(PID), pid=PID, name="python3")
    made.add("TARGET_INFO_SYSTEM_ENV", name="TOKEN", value="secret")
    made.add("ThreadNames", nameId=made.string("main"), globalTid=global_id(PID, TID))
    return made


def read(path: Path) -> Timeline:
    found = source(path)
    assert nsys.matches(found)
    return nsys.read(found).timelines[0]


def test_the_same_as_from_sqlite(tmp_path: Path) -> None:
    plain = read(database := export().write(tmp_path / "a.sqlite"))
    found = read(to_parquet(database, tmp_path / "parquet"))
    assert found.strings.texts == plain.strings.texts
    assert found.findings == plain.findings
    assert found.header == plain.header
    assert found.input.events == plain.input.events
    for name, schema in TABLES.items():
        for column in schema:
            assert np.array_equal(found[name][column], plain[name][column]), f"{name}.{column}"


def test_a_damaged_table_costs_only_itself(tmp_path: Path) -> None:
    folder = to_parquet(export().write(tmp_path / "a.sqlite"), tmp_path / "parquet")
    for name in ("CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_SYSTEM_ENV"):
        (folder / f"{name}.parquet").write_bytes(b"PAR1 and no more")
    timeline = read(folder)
    assert (len(timeline["gpu"]), len(timeline["api"])) == (3, 0)
    lost = [finding.where for finding in timeline.findings if finding.code == "truncated"]
    assert lost == ["table CUPTI_ACTIVITY_KIND_RUNTIME"]


def test_refusals(tmp_path: Path) -> None:
    folder = to_parquet(Export().write(tmp_path / "a.sqlite"), tmp_path / "parquet")
    with pytest.raises(UnreadableInput, match="table CUPTI_ACTIVITY_KIND_KERNEL: expected events"):
        read(folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "sales.parquet").write_bytes(b"PAR1")
    assert not nsys.matches(source(other))
