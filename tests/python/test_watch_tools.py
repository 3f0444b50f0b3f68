# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll top`, `trace` and `export` look at ranks from outside."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import dataclasses
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import Rank, Run, outcomes, run
from shmcoll.watch import blame, board, export, layout, metrics, status, top, trace, views
from shmcoll.watch import text as texts
from shmcoll.watch.board import Call, Member, Owed, Pending, Process, Snapshot, Sum, Watcher
from shmcoll.watch.groups import gather
from shmcoll.watch.rates import Frame, Lateness, Rate
from shmcoll.watch.rings import Ring
from shmcoll.watch.table import Line, plain
import terminal
from tools import await_groups, run_and_look_at_modules
from test_status import foreign_board, release, wait_for_release

pytestmark = pytest.mark.timeout(300)  # of a machine that is busy
LIMIT_S = 40.0
DEFAULT = ("0", "default_pg")  # names of the default group
TOOL = (sys.executable, "-m", "shmcoll")
Done = subprocess.CompletedProcess


def tool(*words: object, code: int = 0, width: int = 120) -> str:
    """What the tool prints."""
    environment = {**os.environ, "COLUMNS": str(width)}
    done = subprocess.run(
        [*TOOL, *map(str, words)], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout


def go_on(rank: Rank) -> bool:
    """Whether the test is not done; all ranks get the same answer."""
    flag = torch.tensor([rank.board[0]])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return not flag.item()


def observed(
    world: int, body: Callable[[Rank], Any], look: Callable[[Run], None], **more: Any
) -> None:
    """Runs the body as ranks, and looks meanwhile."""

    def meanwhile(run: Run) -> None:
        try:
            look(run)
        finally:
            release(run)

    run(world, body, meanwhile=meanwhile, **more)


# ---- the schema of a trace ----


def trace_until(what: str, pids: list[int], file: Path) -> tuple[str, Any]:
    """Traces until the file has 20 of them. Returns what the tool said, and the file."""
    await_groups(pids)
    deadline = time.monotonic() + LIMIT_S
    while True:
        said = tool("trace", "-s", "0.5", "-o", file, *pids)
        found = json.loads(file.read_text())
        if found["otherData"][what] >= 20:
            return said, found
        assert time.monotonic() < deadline, said


def check_trace(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The events by phase, after each was found to be what the format asks for."""
    phases: dict[str, list[dict[str, Any]]] = {"X": [], "s": [], "f": [], "C": [], "M": []}
    for event in events:
        phases[event["ph"]].append(event)
        assert isinstance(event["name"], str) and isinstance(event["pid"], int), event
        assert isinstance(event.get("tid", 0), int) and json.dumps(event), event
        if event["ph"] != "M":
            assert isinstance(event["ts"], (int, float)) and event["ts"] > 0, event
    tracks = {(m["pid"], m["tid"]) for m in phases["M"] if m["name"] == "thread_name"}
    for event in phases["X"]:
        assert (event["pid"], event["tid"]) in tracks and event["dur"] >= 0, event
        assert event["args"].keys() >= {"number", "operation", "dtype", "count", "bytes"}, event
    starts = {event["id"]: event for event in phases["s"]}
    assert all(isinstance(each, int) for each in starts)  # Perfetto drops the others
    ends = {event["id"]: event for event in phases["f"]}
    assert len(starts) == len(phases["s"]) and starts.keys() == ends.keys()
    slices = {(e["pid"], e["tid"], e["ts"]) for e in phases["X"]}
    assert len(slices) == len(phases["X"]), "two slices begin at one moment of a track"
    until = {(e["pid"], e["tid"]): 0.0 for e in phases["X"]}
    on_track: dict[object, list[dict[str, Any]]] = {}
    for event in phases["X"]:  # in the order of time, and on each track one after the other
        track = (event["pid"], event["tid"])
        assert event["ts"] >= until[track] - 0.002, event
        until[track] = event["ts"] + event["dur"]
        on_track.setdefault(track, []).append(event)
    for number, start in starts.items():
        end = ends[number]
        assert (start["pid"], start["tid"], start["ts"]) in slices and end["bp"] == "e"
        assert start["pid"] != end["pid"] and start["ts"] <= end["ts"], (start, end)
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        # Perfetto binds an end to the slice that encloses it: one of the last two that have begun.
        around = on_track[end["pid"], end["tid"]]
        begun = bisect.bisect_right(around, end["ts"], key=lambda event: event["ts"])
        near = around[max(0, begun - 2) : begun]
        assert any(end["ts"] <= e["ts"] + e["dur"] + 0.002 for e in near), end
    assert all(isinstance(e["args"]["MB/s"], (int, float)) for e in phases["C"])
    assert {e["name"] for e in phases["C"]} <= {"collectives"}
    return phases


# ---- the text format of Prometheus ----

SAMPLE = re.compile(
    r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)'
)


def parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of an exposition, after it was found to be in order: HELP and TYPE before the samples of
    a family, which stand together, and no series twice. prometheus_client reads it too, if it is there.
    """
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    family, seen = "", set()
    assert text.endswith("\n")
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines):
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert before.startswith(f"# HELP {family} ") and family not in seen, line
            assert (kind == "counter") == family.endswith("_total"), line
            assert kind in ("counter", "gauge") and before.endswith("."), line
            # As `promtool check metrics` wants names: base units, no type, no suffix of a histogram.
            words = set(family.split("_"))
            assert not words & {"ms", "us", "ns", "kb", "mb", "kib", "counter", "gauge"}, family
            assert not words & {"milliseconds", "microseconds", "kilobytes", "megabytes"}, family
            assert not family.endswith(("_sum", "_count", "_bucket")), family
            seen.add(family)
            continue
        match = SAMPLE.fullmatch(line)
        assert match and match[1] == family, line
        pairs = re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2] or "")
        labels, names = frozenset(pairs), [name for name, _ in pairs]
        assert len(set(names)) == len(names) and not {"le", "quantile", "instance"} & set(names), (
            line
        )
        assert not any(name.startswith("__") for name in names), line
        assert (family, labels) not in found, line
        found[family, labels] = float(match[3])
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        pass
    else:
        read = [s for f in text_string_to_metric_families(text) for s in f.samples]
        assert len(read) == len(found)
    return found


def values(
    found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str
) -> list[float]:
    return [
        value
        for (family, has), value in found.items()
        if family == name and has >= set(labels.items())
    ]


# ---- ranks that run ----


def test_the_rank_that_sleeps_before_each_call_is_named(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        pair = dist.new_group([0, 1], group_desc="pair")
        tensor = torch.ones(1000, dtype=torch.float64)
        while go_on(rank):
            for _ in range(20):
                if rank.rank == 1:
                    time.sleep(0.02)
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=pair)

    def look(run: Run) -> None:
        pids = list(run.pids.values())
        await_groups(pids)
        deadline = time.monotonic() + LIMIT_S
        while True:
            said = json.loads(tool("top", "--once", "--json", "-d", "0.3", *pids))
            pairs = [each for each in said["groups"] if each["name"] not in DEFAULT]
            if pairs and pairs[0]["calls_compared"] >= 40:
                break
            assert time.monotonic() < deadline, said
        (group,) = pairs
        assert (group["straggler"], group["world_size"]) == (1, 2), group
        first, second = group["ranks"]
        assert second["last_share"] > 0.9 and first["last_share"] < 0.1
        # Rank 0 waits nearly all the time, and rank 1 hardly ever.
        assert 0.3 < second["cost_s_per_s"] <= 1.0 and first["cost_s_per_s"] < 0.2
        assert first["share_in_calls"] > second["share_in_calls"]
        assert 1 < first["operations_per_s"] <= 51
        assert abs(first["bytes_per_s"] / first["operations_per_s"] - 8000) < 1
        look_at_the_table(pids)
        look_at_the_trace(pids, tmp_path / "t.json")
        look_at_the_metrics(pids, tmp_path)
        look_through_a_pipe_that_closes(pids)

    observed(2, body, look)


def look_at_the_table(pids: list[int]) -> None:
    for width in (80, 200):
        text = tool("top", "--once", "-d", "0.2", *pids, width=width)
        assert max(map(len, text.splitlines())) <= width, text
        assert re.search(r"-> rank 1 of \"\w+\" is last in \d+% of \d+ calls", text), text
        assert re.search(r"#\d+ all_reduce", text), text
    assert "all_reduce f64[1000]" in text, text


def look_at_the_trace(pids: list[int], file: Path) -> None:
    said = tool("trace", "-s", "0.5", "-o", file, *pids)
    assert re.fullmatch(rf"{re.escape(str(file))}: \d+ calls of 2 ranks, 0 lost\n", said), said
    found = json.loads(file.read_text())
    phases = check_trace(found["traceEvents"])
    names = {m["args"]["name"] for m in phases["M"] if m["name"] == "process_name"}
    assert names in [
        {f'rank 0 (rank 0 of "{each}")', f'rank 1 (rank 1 of "{each}")'} for each in DEFAULT
    ]
    calls = [each for each in phases["X"] if each["args"].get("reduction") == "max"]
    calls = [each for each in calls if each["args"]["count"] == 1000]
    assert len(calls) >= 10 and {each["args"]["bytes"] for each in calls} == {8000}
    # An arrow goes from rank 1 to rank 0, which waits: 20 ms of each call.
    sources = Counter(each["pid"] for each in phases["s"])
    assert sources[pids[1]] > len(calls) / 4, sources
    waits = [each["dur"] for each in calls if each["pid"] == pids[0]]
    assert sorted(waits)[len(waits) // 2] > 10_000, waits
    assert phases["C"] and found["otherData"]["calls"] == len(phases["X"])


def look_at_the_metrics(pids: list[int], folder: Path) -> None:
    file = folder / "shmcoll.prom"
    tool("export", "--textfile", file, "--once", *pids)
    assert [each.name for each in folder.glob("*.prom")] == ["shmcoll.prom"]
    assert not list(folder.glob(".*")) and file.stat().st_mode & 0o444 == 0o444
    found = parse(file.read_text())
    assert found["shmcoll_boards", frozenset()] == 2
    for name in metrics.FAMILIES.keys() - {"shmcoll_errors_total"}:
        assert any(family == name for family, _ in found), name
    operations = values(found, "shmcoll_ops_total", rank="1", op="all_reduce")
    assert len(operations) == 2 and max(operations) >= 20
    assert max(values(found, "shmcoll_wait_seconds_total", rank="0", peer="1")) > 0.2
    again = tool("export", "--textfile", file, "--once", *pids)
    later = parse(file.read_text())
    assert again == "" and all(
        later[series] >= value for series, value in found.items() if series[0].endswith("_total")
    )

    with (
        subprocess.Popen(
            [*TOOL, "export", "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
        ) as server,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(server.kill)  # else a failure here would wait for its end
        assert server.stderr
        where = server.stderr.readline()
        address = where.removeprefix("listening on ").strip()
        with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
            assert answer.headers["Content-Type"] == metrics.CONTENT_TYPE
            assert values(parse(answer.read().decode()), "shmcoll_rank_info", pid=str(pids[0]))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address.removesuffix("metrics"), timeout=LIMIT_S)
        taken = address.removeprefix("http://").removesuffix("/metrics")
        second = subprocess.run(
            [*TOOL, "export", "--listen", taken], capture_output=True, text=True, check=False
        )
        assert second.returncode == 1 and "Address already in use" in second.stderr, second
        server.terminate()
        assert server.wait(LIMIT_S) == 128 + signal.SIGTERM and server.stderr.read() == ""


def look_through_a_pipe_that_closes(pids: list[int]) -> None:
    command = [*TOOL, "top", "--json", "-d", "0.05", *map(str, pids)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as shown:
        assert shown.stdout and shown.stderr
        assert len(json.loads(shown.stdout.readline())["groups"]) == 2
        shown.stdout.close()
        assert shown.wait(LIMIT_S) == 128 + signal.SIGPIPE
        assert shown.stderr.read() == ""


def test_torch_shows_the_same_calls_at_the_same_times(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        tensor = torch.ones(1000)
        while not rank.board[5]:
            time.sleep(0.01)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(40):
                if rank.rank == 1:
                    time.sleep(0.01)
                dist.all_reduce(tensor)
        profiler.export_chrome_trace(str(tmp_path / f"{rank.rank}.json"))
        rank.board[1 + rank.rank] = 1
        wait_for_release(rank)

    def look(run: Run) -> None:
        file = tmp_path / "t.json"
        words = ["trace", "-s", "60", "-o", file, "--join", tmp_path / "0.json"]
        words += ["--join", tmp_path / "1.json", *run.pids.values()]
        await_groups(run.pids.values())
        deadline = time.monotonic() + LIMIT_S
        with subprocess.Popen(
            [*TOOL, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as tracer:
            assert tracer.stdout
            while not list(tmp_path.glob(".t.json.*")):  # it collects
                assert time.monotonic() < deadline and tracer.poll() is None
                time.sleep(0.01)
            run.board[5] = 1
            while not all(run.board[1:3]):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            tracer.send_signal(signal.SIGINT)
            said = tracer.stdout.read()
            assert tracer.wait(LIMIT_S) == 0 and ", 0 lost" in said, said
        events = json.loads(file.read_text())["traceEvents"]
        for pid in run.pids.values():
            of_torch, ours = (
                sorted(each["ts"] for each in events if each["pid"] == pid and wanted(each))
                for wanted in (
                    lambda each: each["name"] == "c10d::allreduce_" and each["ph"] == "X",
                    lambda each: each.get("cat") == "shmcoll",
                )
            )
            assert len(of_torch) == len(ours) == 40
            apart = sorted(abs(a - b) for a, b in zip(of_torch, ours))
            assert apart[20] < 3000, apart  # us; calls are 10 ms apart

    observed(2, body, look)


def test_no_record_is_torn_while_ranks_run_as_fast_as_they_can(tmp_path: Path) -> None:
    """The n-th call has a count, a reduction and bytes that follow from n."""

    def body(rank: Rank) -> None:
        rank.init()
        tensors = [torch.ones(1 + n, dtype=torch.float32) for n in range(97)]
        number = 0
        while True:
            for _ in range(499):
                number += 1
                kind = (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[number % 2]
                dist.all_reduce(tensors[number % 97], op=kind)
            number += 1
            if not go_on(rank):
                return

    def right(call: Call) -> bool:
        if call.number % 500 == 0:
            return call.dtype == "int64" and call.count == 1 and call.reduction == "max"
        wanted = (1 + call.number % 97, "float32", ("sum", "max")[call.number % 2])
        return (call.count, call.dtype, call.reduction) == wanted and call.bytes == 4 * call.count

    def look(run: Run) -> None:
        pids = list(run.pids.values())
        await_groups(pids)
        deadline = time.monotonic() + LIMIT_S
        with Watcher(pids) as watcher:
            watcher.scan()
            rings = [
                Ring(watcher.boards[key], 0, from_start=True) for key in sorted(watcher.boards)
            ]
            newest, taken, polls = [0, 0], [0, 0], 0
            end = time.monotonic() + 1.5
            while time.monotonic() < end or min(taken) < 5000 or not min(r.lost for r in rings):
                assert time.monotonic() < deadline, taken
                polls += 1
                if polls % 2:  # all records are overwritten, the oldest ones while they are read
                    time.sleep(0.03)
                for index, ring in enumerate(rings):
                    for record in ring.poll():
                        assert record.number > newest[index] and record.begin < record.end, record
                        assert right(ring.board.call(record)), ring.board.call(record)
                        newest[index] = record.number
                        taken[index] += 1
            # Each call was taken or counted as lost.
            assert [ring.lost + count for ring, count in zip(rings, taken)] == newest
        file = tmp_path / "t.json"
        tool("trace", "-s", "0.3", "-o", file, *pids)
        release(run)  # what is left looks at the file alone
        found = json.loads(file.read_text())
        phases = check_trace(found["traceEvents"])
        for each in found["otherData"]["ranks"]:
            numbers = [
                event["args"]["number"] for event in phases["X"] if event["pid"] == each["pid"]
            ]
            assert len(set(numbers)) == len(numbers) == each["calls"] > 0
            gaps = max(numbers) - min(numbers) + 1 - len(numbers)
            # Calls that were lost before the first one that was taken are no gap.
            assert gaps <= each["lost"] <= gaps + min(numbers), (gaps, each)

    observed(2, body, look)


class WrittenWhileRead:
    """A board of one group whose writer goes on between two reads of its records."""

    records = (ctypes.sizeof(layout.Group), ctypes.sizeof(layout.Record), 256)

    def __init__(self, left: int, copies: list[dict[int, tuple[int, ...]]]) -> None:
        self.group = layout.Group(state=layout.MADE, entered=left, left=left)
        self.group.nonce[0] = 1
        self.copies = copies  # the records by number, at each read; the last one stays

    def read(self, part: int, offset: int, count: int) -> bytes:
        if offset < self.records[0]:
            return bytes(self.group)[offset : offset + count]
        now = self.copies.pop(0) if len(self.copies) > 1 else self.copies[0]
        data = bytearray(64 * 256)
        for number, fields in now.items():
            struct.pack_into(f"<{len(fields)}Q", data, 64 * (number % 256), *fields)
        return bytes(data[offset - self.records[0] :][:count])


def test_a_record_that_changes_while_it_is_read_is_lost() -> None:
    whole = {n: (n, 10 * n, 10 * n + 5, 0, n, n) for n in range(1, 257)}
    begun = {**whole, 1: (0, 2570, 15, 0, 1, 1)}  # call 257 takes the place of call 1
    mixed = {**whole, 1: (0, 2570, 0, 0, 257, 1)}
    again = {**whole, 256: (256, 2562, 2563, 0, 7, 7)}  # call 256 had failed, and is called again
    wanted = [(*fields, 0, 0) for fields in whole.values()]

    def poll(*copies: dict[int, tuple[int, ...]]) -> tuple[Ring, list[tuple[int, ...]]]:
        ring = Ring(WrittenWhileRead(256, list(copies)), 0, from_start=True)  # type: ignore[arg-type]
        return ring, [tuple(record) for record in ring.poll()]

    ring, found = poll(whole)
    assert found == wanted and ring.lost == 0
    for copies in ((begun, mixed, mixed), (whole, mixed, mixed), (whole, begun, mixed)):
        ring, found = poll(*copies)
        assert found == wanted[1:] and ring.lost == 1
    # An estimated end that is later than the begin of the next call.
    ring, found = poll({n: (n, 10 * n, 10 * n + 12, 0, n, n) for n in whole})
    assert [record[2] for record in found] == [*range(20, 2570, 10), 2572]
    ring, found = poll(whole, whole, again)
    assert found == wanted[:-1]
    assert [tuple(record) for record in ring.poll()] == [(*again[256], 0, 0)]
    assert ring.poll() == []


def test_messages_that_waited_or_are_large_show_in_traces_and_dumps(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        peer = 1 - rank.rank
        small, large = torch.ones(2, dtype=torch.int64), torch.ones(1 << 15)
        while go_on(rank):
            if rank.rank == 0:
                for tag in (7, 8):  # small sends end at once: nothing is kept of them
                    dist.send(small, 1, tag=tag)
                dist.recv(large, 1, tag=9)
            else:
                dist.recv(small, 0, tag=7)
                time.sleep(0.03)
                dist.recv(small, 0, tag=8)
                dist.send(large, 0, tag=9)
            both = [
                dist.isend(large, peer, tag=10),
                dist.irecv(torch.ones_like(large), peer, tag=10),
            ]
            for work in both:
                work.wait()
        with pytest.raises(dist.DistBackendError):  # each rank writes its dump
            dist.all_reduce(large[: 1 + rank.rank])

    def look(run: Run) -> None:
        pids, file = list(run.pids.values()), tmp_path / "t.json"
        said, found = trace_until("messages", pids, file)
        assert re.search(r" 2 ranks, 0 lost; \d+ messages, 0 lost\n", said), said
        phases = check_trace(found["traceEvents"])
        messages = [each for each in phases["X"] if each["cat"] == "message"]
        assert len(messages) == found["otherData"]["messages"]
        assert not [e for e in messages if e["args"]["tag"] < 9 and e["name"] == "send"], messages
        waited = [e["dur"] for e in messages if e["args"]["tag"] == 9 and e["name"] == "recv"]
        assert sorted(waited)[len(waited) // 2] > 15_000, waited
        for each in messages:
            wanted = 16 if each["args"]["tag"] in (7, 8) else 1 << 17
            assert each["args"]["bytes"] == wanted and each["args"]["peer"] in (0, 1), each
            assert "failed" not in each["args"]
        # Nearly each message has its arrow.
        arrows = [each for each in phases["s"] if each["name"] == "message"]
        sends = [e for e in messages if e["name"] == "send" and e["args"]["tag"] > 8]
        assert len(sends) - 8 <= len(arrows) <= len(sends), (len(sends), len(arrows))

    observed(2, body, look, env={"SHMCOLL_DUMP": str(tmp_path)})
    text = tool("postmortem", tmp_path)
    assert re.search(
        r"rank 0 +pid \d+  .*\n +last message kept: \w+ f32\[32768\] (to|from) rank 1, tag 10", text
    ), text
    dumped = json.loads(tool("postmortem", "--json", tmp_path))
    for each in dumped["groups"][0]["ranks"]:
        tags = {message["tag"] for message in each["messages"]}
        assert {9, 10} <= tags <= {7, 8, 9, 10}, tags
        assert all(m["end_ns"] >= m["begin_ns"] and m["status"] == "ok" for m in each["messages"])


def test_without_times_there_are_none(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        while go_on(rank):
            time.sleep(0.005)

    def look(run: Run) -> None:
        pids = list(run.pids.values())
        await_groups(pids)
        deadline = time.monotonic() + LIMIT_S
        while not (said := first_group(pids))["ranks"][0]["operations_per_s"]:
            assert time.monotonic() < deadline
        for each in said["ranks"]:
            assert each["in_call_s"] is each["share_in_calls"] is each["last_share"] is None
        rows = tool("top", "--once", "-d", "0.2", *pids).splitlines()[2:4]
        head = "RANK PID STATE CALL IN OPS MB COMM WAITS LAST COSTS".split()
        for row in rows:
            cells = dict(zip(head, row.split()[-len(head) :]))
            assert [cells[each] for each in ("IN", "COMM", "LAST", "COSTS")] == ["-"] * 4, row
        file = tmp_path / "t.json"
        text = tool("trace", "-s", "0.1", "-o", file, *pids, code=3)
        assert f"process {pids[0]} keeps no times" in text and not file.exists()
        tool("export", "--textfile", file, "--once", *pids)
        found = parse(file.read_text())
        assert values(found, "shmcoll_ops_total") and not values(found, "shmcoll_seconds_total")

    def first_group(pids: list[int]) -> Any:
        return json.loads(tool("top", "--once", "--json", "-d", "0.2", *pids))["groups"][0]

    observed(2, body, look, env={"SHMCOLL_BOARD": "counts"})


def test_a_failed_group_and_a_process_that_ends_meanwhile(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.barrier()
        rank.board[1 + rank.rank] = 1
        if rank.rank == 1:
            while rank.board[5] == 0:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(dist.DistBackendError):
            dist.barrier()
        wait_for_release(rank)

    def meanwhile(run: Run) -> None:
        try:
            look(run)
        finally:
            release(run)

    def look(run: Run) -> None:
        deadline = time.monotonic() + LIMIT_S
        pids = list(run.pids.values())
        while not all(run.board[1:3]):
            time.sleep(0.01)
        with Watcher(pids) as watcher:
            assert len(watcher.look().members) == 2
            run.board[5] = 1
            while len(members := watcher.look().members) > 1 or not members[0].status:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        file = tmp_path / "x.prom"
        tool("export", "--textfile", file, "--once", *pids)
        found = parse(file.read_text())
        assert values(found, "shmcoll_group_state") == [metrics.FAILED]
        assert values(found, "shmcoll_errors_total", status="peer dead") == [1]
        text = tool("top", "--once", "-d", "0.1", *pids)
        assert '" has failed:' in text, text
        assert re.search(r"^ +1 +\d+ +- +died", text, re.M), text
        trace_words = ("trace", "-s", "0.05", "-o", tmp_path / "t.json", *pids)
        tool(*trace_words)
        (tmp_path / "old.json").write_text('{"traceEvents": []}')
        said = tool(*trace_words, "--join", tmp_path / "old.json", code=1)
        assert "old.json is not joined: KeyError: 'baseTimeNanoseconds'" in said, said

    ended = outcomes(2, body, meanwhile=meanwhile)
    assert [each.exit for each in ended] == [0, -9], ended


def test_a_board_that_cannot_be_read_is_said_once_however_long_a_trace_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board, "RESCAN_S", 0.0)
    descriptor = foreign_board(layout.VERSION + 1)
    try:
        with Watcher([os.getpid()]) as watcher:
            for _ in range(5):
                watcher.scan_some(1)
            assert [
                f"process {os.getpid()} has a board of" in each for each in watcher.problems
            ] == [True]
    finally:
        os.close(descriptor)


# ---- what is printed ----


def member(rank: int, **facts: Any) -> Member:
    process = Process(4711 + rank, "train.py", "S", "0.1.0", 2)
    ns = 60 * 10**9
    call = Call(121002 + rank, "all_reduce", "float32", "sum", None, 1000, 4000, 0, ns - 9000, None)
    default: dict[str, Any] = dict(
        process=process,
        name="0",
        description="default_pg",
        nonce=b"n" * 16,
        rank=rank,
        world_size=2,
        making=False,
        begun_ns=0,
        made_ns=0,
        timeout_ns=0,
        segment_bytes=2**20,
        status=0,
        reason="",
        found_by=None,
        end=None,
        entered=121002 + rank,
        left=121001,
        call=call,
        waits_for=None,
        waits_since_ns=ns,
        late=0,
        slept_ns=0,
        pending=None,
        owed=Owed(0, False, 0, 0, 0, 0, 0, "send", 0),
        over=None,
        device=None,
        device_messages=None,
        device_kept=0,
        sums={"all_reduce": Sum(121001, 484004000, 10**9)},
        pids=[4711, 4712],
        global_ranks=[0, 1],
        waited_ns=[0, 0],
        seen_ns=ns,
        kept_messages=0,
        busy_ticks=1,
        ns_per_tick=1.0,
        part=0,
    )
    return Member(**{**default, **facts})


def frame() -> Frame:
    ns = 60 * 10**9
    stopped = Process(4713, "train.py", "T", "0.1.0", 2)
    barrier = Call(52, "barrier", "int8", None, None, 0, 0, 0, ns - 8 * 10**9, ns - 7 * 10**9)
    reduction = Call(
        53, "all_reduce", "float64", "max", None, 4096, 32768, 0, ns - 7300000000, None
    )
    tp = dict(description="tp", nonce=b"t" * 16, pids=[4712, 4713, 4714], global_ranks=[1, 2, 3])
    tp |= dict(world_size=3, waited_ns=[0] * 3, begun_ns=1, part=1)
    members = [
        member(0, waits_for=1, pending=Pending(0, 2, "recv", 1, 7, 12, ns - 41 * 10**9, False)),
        member(
            1,
            left=121003,
            late=1,
            owed=Owed(9, False, 0, 1, 9, ns - 2 * 10**9, 1, "recv", 7),
        ),
        member(
            0,
            **{**tp, "waited_ns": [0, 7200000000, 0]},
            process=dataclasses.replace(stopped, pid=4712, state="S"),
            entered=53,
            left=52,
            call=reduction,
            waits_for=1,
            waits_since_ns=ns - 7200000000,
        ),
        member(1, **tp, process=stopped, entered=52, left=52, call=barrier),
    ]
    rates = {members[0].key: Rate(30628, 121.3e6, 0.78), members[1].key: Rate(30628, 121.3e6, 0.76)}
    rates |= {members[2].key: Rate(0, 0, 1.0), members[3].key: Rate(0, 0, 0.0)}
    late = Lateness(1024, {0: 0.36, 1: 0.64}, {0: 0.01, 1: 0.12})
    snapshot = Snapshot(
        ns, members, ["process 9 has a board of version 7, and this tool reads version 1"]
    )
    return Frame(snapshot, gather(snapshot), 1.0, rates, {b"n" * 16: late})


def test_a_cycle_of_one_job_hides_no_rank_that_another_job_waits_for() -> None:
    late, cycle = gather(frame().snapshot)
    wait = blame.Wait(cycle, 0, 1, 7.0, "barrier #1")
    verdict = blame.Verdict([blame.Culprit(late, 1, 3)], [[wait]])
    lines = status.verdict_lines(verdict)
    assert [line.split(" wait")[0] for line in lines] == [
        "-> 3 ranks",
        "DEADLOCK: each of these",
        "  rank 1 (0 here)",
    ]


def test_a_group_that_all_ranks_make_waits_for_the_store() -> None:
    """No rank is missing, and still the group is not made after the limit: of 5 s."""
    now = dataclasses.replace(member(0), making=True, begun_ns=1, seen_ns=60 * 10**9)
    groups = gather(Snapshot(60 * 10**9, [now, dataclasses.replace(now, rank=1)], []))
    (group,) = groups
    assert group.absent == []
    lines = status.group_verdict(group, 5.0)
    assert lines == ["  -> the group is not made: all ranks have come; is the store alive?"]
    assert status.group_verdict(group, 100.0) == []


def test_many_ranks_that_others_wait_for_are_counted() -> None:
    large = dict(world_size=8, global_ranks=list(range(8)), waited_ns=[0] * 8)
    large |= dict(pids=list(range(4711, 4719)), entered=9, left=8, waits_for=1, waits_since_ns=1)
    late = dict(entered=8, left=8, waits_for=None)

    def said(absent: int) -> list[str]:
        members = [
            member(rank, **{**large, **(late if 1 <= rank <= absent else {})}) for rank in range(8)
        ]
        groups = gather(Snapshot(60 * 10**9, members, []))
        return status.verdict_lines(blame.judge(groups, 5.0))

    assert len(said(4)) == 4 and not any("more" in line for line in said(4))
    assert len(said(5)) == 5 and said(5)[-1] == "-> and 1 more rank"
    assert said(7)[-1] == "-> and 3 more ranks"


def test_processes_of_two_hosts_may_have_one_pid() -> None:
    """In the dumps of two containers, say. The rank of host a waits for that of host b, which is in no call."""
    over = board.Over(9, 2, 0, 2, (0,), 1, "")
    here = Process(1, "", "?", "0.1.0", 2, "a")
    waits = member(0, process=here, over=over, entered=5, left=4, waits_for=None)
    there = dataclasses.replace(over, host=1, ranks=(1,), awaits_since_ns=None)
    idle = member(
        1,
        process=dataclasses.replace(here, host="b"),
        over=there,
        entered=4,
        left=4,
        waits_for=None,
    )
    (culprit,) = blame.judge(gather(Snapshot(60 * 10**9, [waits, idle], [])), 5.0).culprits
    assert (culprit.rank, culprit.waited_for_by) == (1, 1)


def test_a_group_has_the_words_that_any_of_its_ranks_knows() -> None:
    """torch tells them after the group is made: a rank knows them from its first call on."""
    snapshot = Snapshot(1, [member(0, description="0"), member(1, description="tp")], [])
    assert [each.name for each in snapshot.members] == ["0", "0"]
    assert [group.name for group in gather(snapshot)] == ["tp"]


def test_the_reason_of_a_failure_stands_once_unless_ranks_know_different_ones() -> None:
    def said(*facts: tuple[int, str]) -> list[str]:
        """Of ranks that know who found the failure, and the reason."""
        members = [
            member(rank, status=9, found_by=finder, reason=reason)
            for rank, (finder, reason) in enumerate(facts)
        ]
        (group,) = gather(Snapshot(60 * 10**9, members, []))
        return [status._what(group, rank) for rank in range(2)] + status.group_verdict(group, 5.0)

    assert said((1, "rank 0 is late (found by rank 1)"), (1, "rank 0 is late")) == [
        "knows that the group has failed",
        "found that the group has failed",
        "  -> the group has failed: rank 0 is late",
    ]
    assert said((0, "a timed out"), (1, "b timed out")) == [
        "found that the group has failed: a timed out",
        "found that the group has failed: b timed out",
        "  -> the group has failed: a timed out",
    ]


def test_a_long_line_goes_on_in_the_next_one_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["  rank 0  pid 4711  " + "waits for rank 1 " * 5, "-> short"]
    texts.print_fitted(lines)
    assert capsys.readouterr().out.splitlines() == lines  # no terminal
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    texts.print_fitted(lines)
    first, second, last = capsys.readouterr().out.splitlines()
    assert len(first) <= 80 and first.startswith("  rank 0  pid 4711  waits")
    assert second.startswith("      ") and last == "-> short"
    assert (first + " " + second.strip()).split() == lines[0].split()


def show(lines: list[Line]) -> str:
    return "\n".join(plain(line) for line in lines) + "\n"


def test_the_table_at_80_and_at_200_columns() -> None:
    golden = Path(__file__).with_name("watch_tables.txt")
    shown = frame()
    parts = []
    for width in (80, 200):
        for name, view in views.VIEWS.values():
            parts.append(f"==== {name}, {width} columns\n{show(view(shown, width))}")
        parts.append(f"==== sentences, {width} columns\n{show(views.verdicts(shown, width))}")
    text = "\n".join(parts)
    for part, width in zip(text.split("==== ")[1:], [80] * 6 + [200] * 6):
        assert max(map(len, part.splitlines())) <= width, part
    if os.environ.get("SHMCOLL_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("width", [80, 72])
def test_a_narrow_terminal_leaves_columns_out_before_it_cuts_names_and_calls(width: int) -> None:
    shown = frame()
    (group, _) = shown.groups
    first = group.members[0]
    assert first.call
    call = dataclasses.replace(first.call, number=316)
    group.members = {rank: dataclasses.replace(group.members[rank], call=call) for rank in (0, 1)}
    only = dataclasses.replace(shown, groups=[group])
    head, *rows = map(plain, views.ranks(only, width))
    assert "MB/S" not in head and "COSTS" not in head and "LAST" in head, head
    assert max(map(len, [head, *rows])) <= width, rows
    if width == 80:
        assert rows[0].startswith("default_pg ") and "#316 all_reduce f32[1000] " in rows[0], rows
    wide = "\n".join(map(plain, views.ranks(only, 120)))
    assert "MB/S" in wide and "COSTS" in wide and "…" not in wide, wide


@pytest.mark.parametrize(
    ("last", "named"),
    [
        ((0.31, 0.27, 0.42), None),
        ((0.30, 0.20, 0.50), None),
        ((0.24, 0.22, 0.54), 2),
        ((0.40, 0.60), None),
        ((0.36, 0.64), 1),
        ((0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.4), None),
        ((0.1, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.53), 7),
    ],
)
def test_a_rank_is_named_as_slow_if_it_is_last_clearly_more_often_than_others(
    last: tuple[float, ...], named: int | None
) -> None:
    slow = len(last) - 1
    cost = {rank: 0.2 if rank == slow else 0.01 for rank in range(len(last))}
    shares = dict(enumerate(last))
    assert Lateness(131, shares, cost).straggler == named
    assert Lateness(19, shares, cost).straggler is None  # too few calls
    assert Lateness(131, shares, {**cost, slow: 0.04}).straggler is None  # it costs little


def test_the_picture_in_the_guide_is_what_the_tool_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """SHMCOLL_WRITE_GOLDEN=1 draws it again."""
    monkeypatch.setattr(views.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(board, "read_process", lambda _: None)  # none of this machine's
    file = Path(__file__).parents[2] / "docs/operate/top.svg"
    shown = frame()
    shown.snapshot.problems.clear()
    lines = [views.title(shown, "ranks", 1.0), *views.ranks(shown, 110)]
    lines += [*views.verdicts(shown, 110), [(views.KEYS, "dim")]]
    picture = terminal.svg(lines, "shmcoll top")
    if os.environ.get("SHMCOLL_WRITE_GOLDEN"):
        file.write_text(picture)
    assert picture == file.read_text()


def test_the_screen_fits_any_size() -> None:
    shown = frame()
    live = top._Live(None, top._parser().parse_args([]))  # type: ignore[arg-type]
    for height in (3, 8, 30):
        for key in views.VIEWS:
            live._key = key
            lines = live._screen(shown, 80, height)
            assert len(lines) == height
            assert height < 8 or plain(lines[-1]).endswith("q quit")


def test_the_key_s_runs_the_tool_for_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(top.stacks, "main", asked.append)
    live = top._Live(None, top._parser().parse_args([]))  # type: ignore[arg-type]
    with pytest.raises(top._Stacks) as wish:
        live._press("s", frame())
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    wish.value.run()
    assert asked == [["4711", "4712", "4713"]]


# ---- a terminal ----


@pytest.mark.parametrize("end", ["q", "ctrl-c", "ctrl-\\", "SIGTERM"])
def test_the_terminal_is_as_it_was(end: str) -> None:
    pytest.importorskip("rich", reason="no rich")
    import select
    import termios

    main_end, terminal = os.openpty()
    before = termios.tcgetattr(terminal)
    process = subprocess.Popen(
        [*TOOL, "top", "-d", "0.1", str(os.getpid())],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: _take(terminal),
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"},
    )
    output = b""
    deadline = time.monotonic() + LIMIT_S

    def read_until(wanted: bytes) -> None:
        nonlocal output
        start = len(output)
        while wanted not in output[start:]:
            assert time.monotonic() < deadline, output
            if select.select([main_end], [], [], 0.1)[0]:
                output += os.read(main_end, 65536)

    try:
        read_until(b"q quit")
        assert not termios.tcgetattr(terminal)[3] & termios.ICANON
        for key, name in (("g", b"groups"), ("w", b"waits"), ("m", b"messages"), ("x", b"top")):
            os.write(main_end, key.encode())
            read_until(name)
        if end == "q":
            os.write(main_end, b"\x1a")  # Ctrl-Z
            read_until(b"\x1b[?1049l")
            while board.read_process(process.pid)[1] != "T":  # type: ignore[index]
                assert time.monotonic() < deadline
            assert termios.tcgetattr(terminal) == before
            process.send_signal(signal.SIGCONT)
            read_until(b"q quit")
        if end == "SIGTERM":
            process.terminate()
        else:
            os.write(main_end, {"q": b"q", "ctrl-c": b"\x03", "ctrl-\\": b"\x1c"}[end])
        while process.poll() is None:
            assert time.monotonic() < deadline, output
            if select.select([main_end], [], [], 0.05)[0]:
                output += os.read(main_end, 65536)
        while select.select([main_end], [], [], 0.05)[0]:
            output += os.read(main_end, 65536)
        assert termios.tcgetattr(terminal) == before
    finally:
        process.kill()
        process.wait()
        os.close(main_end)
        os.close(terminal)
    codes = {"SIGTERM": 128 + signal.SIGTERM, "ctrl-\\": 128 + signal.SIGQUIT}
    assert process.returncode == codes.get(end, 3), output
    # The screen of before, and its cursor.
    assert output.rindex(b"\x1b[?1049l") > output.rindex(b"\x1b[?1049h")
    assert output.rindex(b"\x1b[?25h") > output.rindex(b"\x1b[?25l")
    assert b"Traceback" not in output


def _take(terminal: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


# ---- what can go wrong ----

MAINS = {
    "top": (top, ["--once"]),
    "trace": (trace, ["-s", "0.1", "-o", "unwritten.json"]),
    "export": (export, ["--once", "--textfile", "written.prom"]),
    "status": (status, []),
}


@pytest.mark.parametrize("name", MAINS)
def test_nothing_found_is_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, words = MAINS[name]
    monkeypatch.chdir(tmp_path)
    ends = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    handlers = {each: signal.getsignal(each) for each in ends}
    try:
        assert module.main([*words, str(os.getpid())]) == 3
        assert f"no shmcoll group in process {os.getpid()}" in capsys.readouterr().out

        fd = foreign_board(layout.VERSION + 1)
        try:
            assert module.main([*words, str(os.getpid())]) == 3
        finally:
            os.close(fd)
        assert f"has a board of version {layout.VERSION + 1}" in capsys.readouterr().out

        monkeypatch.setattr(board, "PROC", str(tmp_path / "proc"))
        assert module.main(words) == 3
        out, errors = capsys.readouterr()
        assert "processes cannot be listed" in out and "in 0 processes" in out and errors == ""

        for bad in (["x"], ["--no-such"]):
            with pytest.raises(SystemExit) as ended:
                module.main([*words, *bad])
            assert ended.value.code == 64
        assert "usage:" in capsys.readouterr().err
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert not (tmp_path / "unwritten.json").exists()
    if name == "export":
        assert values(parse((tmp_path / "written.prom").read_text()), "shmcoll_boards") == [0]


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    words = ("export", "--once", "--textfile", tmp_path / "missing" / "x.prom")
    done = subprocess.run([*TOOL, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr and "missing/x.prom" in done.stderr


@pytest.mark.parametrize("word", ["x", "3s", "nan", "-1", "1e9"])
def test_seconds_that_are_none_are_named(word: str, capsys: Any) -> None:
    for main, option in ((status.main, "--late"), (top.main, "-d")):
        with pytest.raises(SystemExit):
            main([f"{option}={word}"] if option == "--late" else [f"{option}{word}"])
        assert f"{word} is not a number of seconds from 0" in capsys.readouterr().err


def test_without_rich_there_is_one_table_after_the_other() -> None:
    code = (
        "import sys; sys.modules['rich'] = None; sys.stdout.isatty = lambda: True;"
        "from shmcoll.watch import top; sys.exit(top.main(['-d', '0.05', str(2**30)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done
    assert 'python -m pip install "shmcoll[tools]"' in done.stderr


@pytest.mark.parametrize("name", MAINS)
def test_it_loads_neither_torch_nor_the_library(name: str, tmp_path: Path) -> None:
    words = [name, *MAINS[name][1], str(os.getpid())]
    done = run_and_look_at_modules(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_names_from_other_programs_cannot_steer_a_terminal_or_break_the_metrics() -> None:
    assert (
        board.printable(b"a\x1b[2J\nb\xff\x00c", keep="\0") == "a?[2J?b\N{REPLACEMENT CHARACTER}\0c"
    )
    strange = member(
        0, description='a"b\\c', world_size=1, pids=[1], global_ranks=[0], waited_ns=[0]
    )
    found = parse(metrics.render(metrics.samples(Snapshot(strange.seen_ns, [strange], []))))
    assert values(found, "shmcoll_group_state", group='a\\"b\\\\c') == [metrics.MADE]


def test_a_counter_of_seconds_does_not_go_back() -> None:
    labels = (("group", "0"), ("op", "barrier"))
    now = metrics.Sample("shmcoll_seconds_total", labels, 5.0)
    earlier = dataclasses.replace(now, value=4.9999)
    steady = metrics.Steady()
    assert steady.apply([now]) == [now] and steady.apply([earlier]) == [now]
    later = metrics.Steady(metrics.render([now]))
    assert later.apply([earlier]) == [now]


def test_a_group_of_64_ranks_and_another_job_of_the_same_name() -> None:
    ns = 60 * 10**9
    large = dict(world_size=64, global_ranks=list(range(64)), waited_ns=[0] * 64)
    large |= dict(pids=list(range(4711, 4775)), entered=9, left=8, waits_for=5, waits_since_ns=1)
    late = dict(entered=8, left=8, waits_for=None)
    members = [member(rank, **{**large, **(late if rank in (5, 40) else {})}) for rank in range(64)]
    other = [
        member(rank, nonce=b"o" * 16, process=Process(99 + rank, "b.py", "S", "0.1.0", 2))
        for rank in range(2)
    ]
    groups = gather(Snapshot(ns, [*members, *other], []))
    assert sorted(group.world_size for group in groups) == [2, 64]
    (group,) = [each for each in groups if each.world_size == 64]
    assert group.absent == [] and group.missing(group.members[0]) == (5, 40)
    found = blame.judge(groups, 5.0)
    assert {(each.rank, each.waited_for_by) for each in found.culprits} == {(5, 62), (40, 62)}
    assert not found.cycles
    said = status._as_json(Snapshot(ns, [], []), groups, found)
    assert sorted(len(each["ranks"]) for each in said["groups"]) == [2, 64]  # type: ignore[attr-defined]
    assert {(each["rank"], each["pid"]) for each in said["waited_for"]} == {(5, 4716), (40, 4751)}  # type: ignore[attr-defined]
    (ranks,) = [each["ranks"] for each in said["groups"] if each["world_size"] == 64]  # type: ignore[attr-defined]
    assert ranks[0]["waits_for"] == [5, 40] and ranks[5]["waits_for"] == []
