"""Flight Recorder dumps: who waits in which collective, and who did not come to it.

`tests/data/flight` holds dumps of three ranks on gloo (torch 2.13): five all-reduces of all, an
all-gather of ranks 0 and 1, and a sixth all-reduce that rank 2 never calls.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from rca_llm import load
from rca_llm.attribute.members import group_of, listed, members
from rca_llm.errors import UnreadableInput
from tests.timelines import findings

DATA = Path(__file__).parent / "data" / "flight"
BASE = 1_700_000_000_000_000_000
MS = 1_000_000


def dump(folder: Path, rank: int, entries: list[dict[str, Any]], *, plain: bool = True) -> Path:
    """A dump as NCCL leaves it, of a group of four ranks and one of two."""
    said = {
        "version": "2.10",
        "nccl_version": "2.27.5",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"},
            "1": {"name": "1", "desc": "tp", "ranks": "[0, 1]"},
        },
        "pg_status": {},
        "entries": entries,
    }
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(json.dumps(said).encode() if plain else pickle.dumps(said, protocol=2))
    return path


def entry(seq: int, created: int, completed: int | None, **more: Any) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:_all_gather_base",
        "time_created_ns": BASE + created,
        "time_discovered_completed_ns": None if completed is None else BASE + completed,
        "state": "scheduled" if completed is None else "completed",
        "retired": completed is not None,
        "input_sizes": [[3, 4]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[12, 4]],
        "output_dtypes": ["BFloat16"],
        "is_p2p": False,
        **more,
    }


@pytest.mark.parametrize("form", ["fr_rank_*", "fr_json_*"])
def test_real_dumps_tell_who_did_not_come(form: str) -> None:
    found = load(*sorted(DATA.glob(form))).attribute().summary
    assert [row["rank"] for row in found["ranks"]] == [0, 1, 2]
    assert [row["format"] for row in found["inputs"]] == 3 * ["flight"]
    rows = [(row["op"], row["seq"], row["ranks"], row["bytes"]) for row in found["collectives"]]
    assert [row for row in rows if row[0] == "all_reduce"] == [
        ("all_reduce", seq, [0, 1, 2] if seq < 6 else [0, 1], 128) for seq in range(1, 7)
    ]
    assert ("all_gather", 1, [0, 1], 128) in rows
    [row] = findings(found, "not_arrived")
    assert row["count"] == 1
    assert row["detail"].startswith("rank 2 did not come to all_reduce 6, in which rank 0, 1 wait")
    assert "rank 2: all_reduce 5" in row["detail"]
    assert {one["code"] for one in found["quality"]} == {"not_arrived", "not_traced", "repaired"}
    assert found["shares"]["unknown"] == found["window"]["span_ns"]


@pytest.mark.parametrize("plain", [True, False])
def test_collectives_have_group_size_bytes_and_times(tmp_path: Path, plain: bool) -> None:
    for rank in range(4):
        late = 5 * MS if rank == 3 else 0
        entries = [
            entry(seq, seq * 10 * MS + late, seq * 10 * MS + 8 * MS + rank) for seq in range(60)
        ]
        if rank < 2:
            name = "nccl:send 0->1" if rank == 0 else "nccl:recv 1<-0"
            pair = {"profiling_name": name, "is_p2p": True, "p2p_seq_id": 1}
            entries.append(entry(0, 700 * MS, 701 * MS, process_group=["1", "tp"], **pair))
        dump(tmp_path, rank, entries, plain=plain)
    found = load(tmp_path).attribute().summary
    assert findings(found, "not_arrived") == []
    first = found["collectives"][0]
    assert (first["comm"], first["op"], first["dtype"]) == (
        "0 default_pg [0-3]",
        "all_gather",
        "bf16",
    )
    assert (first["bytes"], first["missing"]) == (24, [])
    assert first["last_rank"] == 3
    assert abs(first["wait_ns"]["0"] - 5 * MS) < MS / 10
    pair = found["collectives"][-1]
    assert (pair["comm"], pair["op"], pair["ranks"]) == ("1 tp [0,1] 0>1", "send", [0, 1])
    groups = {row["comm"]: row for row in found["groups"]}
    assert groups["0 default_pg [0-3]"]["straggler"] == 3
    assert groups["1 tp [0,1]"]["kind"] == "tensor"


def test_the_first_entries_that_a_ring_has_lost_are_no_absence(tmp_path: Path) -> None:
    for rank in range(4):
        dump(tmp_path, rank, [entry(seq, seq * MS, seq * MS + 10) for seq in range(rank, 9)])
    assert findings(load(tmp_path).attribute().summary, "not_arrived") == []


def test_a_dump_of_a_rank_that_was_not_given_accuses_nobody(tmp_path: Path) -> None:
    for rank in range(3):
        dump(tmp_path, rank, [entry(1, MS, 2 * MS), entry(2, 3 * MS, None)])
    found = load(tmp_path).attribute().summary
    assert findings(found, "not_arrived") == []
    assert found["collectives"][0]["missing"] == [3]


class _Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch evil",)


def test_a_pickle_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil_0"
    path.write_bytes(pickle.dumps({"pg_config": {}, "pg_status": {}, "entries": [_Evil()]}))
    with pytest.raises(UnreadableInput, match="it asks for"):
        load(path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("cut", [10, 200, 1500])
def test_a_cut_dump_is_refused_and_costs_no_other(tmp_path: Path, cut: int) -> None:
    for path in DATA.glob("fr_rank_*"):
        shutil.copy(path, tmp_path)
    broken = tmp_path / "fr_rank_1"
    broken.write_bytes(broken.read_bytes()[:cut])
    found = load(tmp_path).attribute().summary
    assert [row["rank"] for row in found["ranks"] if row["status"] != "missing"] == [0, 2]
    if cut > 100:
        assert findings(found, "truncated")[0]["where"] == str(broken)


def test_members_come_back_from_names() -> None:
    for ranks in ([0, 1], [0, 1, 2, 3], [0, 4], [1, 3, 5], list(range(8, 16))):
        name = f"1 tp [{listed(ranks)}]"
        assert members(name) == tuple(ranks)
        assert group_of(f"{name} 3>5") == group_of(name) == name
    assert members("1 tp [0,1] 1>0") == (1, 0)
    assert members("tp") is None
    assert members(f"x [{listed(list(range(0, 100, 2)))}]") is None
