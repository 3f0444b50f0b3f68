# SPDX-License-Identifier: BSD-3-Clause
"""Dumps of failed groups, and what `shmcoll postmortem` and torch's analyser make of them."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

import features
import shmcoll
from ranks import Outcome, Rank, outcomes, run, seconds
from shmcoll.watch import board, dumps, flight, flight_messages, layout, postmortem
from tools import run_and_look_at_modules

pytestmark = pytest.mark.timeout(300)  # of a machine that is busy
PYTHON = (sys.executable, "-m")
ANALYSER = "torch.distributed.flight_recorder.fr_trace"


def tool(*words: object, code: int = 0, width: int = 160) -> str:
    environment = {**os.environ, "COLUMNS": str(width)}
    done = subprocess.run(
        [*PYTHON, "shmcoll", "postmortem", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout


def analysed(folder: Path, *words: str) -> str:
    """What torch's analyser says about it."""
    if not features.ANALYSES_GLOO:
        pytest.skip("this torch has no analyser of gloo's records")
    done = subprocess.run(
        [*PYTHON, ANALYSER, str(folder), "-p", flight.PREFIX, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout + done.stderr


def fails(rank: Rank, call: Any) -> str:
    with pytest.raises(dist.DistBackendError) as raised:
        call()
    return str(raised.value)


# ---- a rank that is late ----


def late(rank: Rank) -> str:
    """Rank 1 makes its last call when the others have given up."""
    rank.sync()  # the time-out is the rendezvous's, too
    rank.init(timeout=seconds(1))
    pair = dist.new_group([1, 2], group_desc="pair")
    tensor = torch.ones(1000, dtype=torch.float64)
    for _ in range(7):
        dist.all_reduce(tensor)
    if rank.rank:
        dist.barrier(pair)
    if rank.rank == 1:
        rank.sync()
        return fails(rank, lambda: dist.all_reduce(tensor))
    text = fails(rank, lambda: dist.all_reduce(tensor, op=dist.ReduceOp.MAX))
    rank.sync()
    return text


@pytest.fixture(scope="module")
def late_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Outcome]]:
    folder = tmp_path_factory.mktemp("late")
    env = {
        "SHMCOLL_DUMP": str(folder),
        "TORCHELASTIC_RUN_ID": "my job/7",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    return folder, outcomes(3, late, env=env)


def test_each_rank_of_a_failed_group_writes_one_dump(late_job: tuple[Path, list[Outcome]]) -> None:
    folder, ended = late_job
    assert all(each.ok and "Timed out after 1.0" in each.value for each in ended), ended
    names = sorted(path.name for path in folder.iterdir())
    found = [re.fullmatch(r"shmcoll-my_job_7\.2-([0-9a-f]{8})-rank-(\d)\.dump", n) for n in names]
    assert all(found) and [match[2] for match in found if match] == ["0", "1", "2"], names
    assert len({match[1] for match in found if match}) == 1
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


def test_the_reason_the_last_calls_and_the_rank_that_is_missed(
    late_job: tuple[Path, list[Outcome]],
) -> None:
    folder, _ = late_job
    said = json.loads(tool(folder, "--json"))
    assert said["problems"] == [] and len(said["dumps"]) == 3
    assert {each["job"] for each in said["dumps"]} == {"my_job_7.2"}
    world, pair = said["groups"]
    assert (world["name"], world["state"], world["status"]) == ("default_pg", "failed", "timeout")
    assert "Timed out after 1.0" in world["reason"] and world["without_dump"] == []
    assert (world["newest"], world["difference"], world["not_come"]) == (8, 8, [1])
    first, second, _ = world["ranks"]
    assert [call["number"] for call in first["calls"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert first["in_call"] and first["waits_for"] == [1] and not second["in_call"]
    last = first["calls"][-1]
    assert (last["operation"], last["dtype"], last["count"]) == ("all_reduce", "float64", 1000)
    assert (last["reduction"], last["end_ns"], last["status"]) == ("max", None, "ok")
    assert all(call["end_ns"] >= call["begin_ns"] for call in first["calls"][:-1])
    assert second["number"] == 7 and "found by rank" in second["reason"]
    assert (pair["name"], pair["state"], pair["not_come"]) == ("pair", "made", [])
    assert pair["ranks"][0]["global_rank"] == 1

    text = tool(folder)
    assert text.index("timeout: Timed out after 1.0") < text.index("#4") < text.index("-> rank 1")
    row = next(line for line in text.splitlines() if line.startswith("  -> #8"))
    assert "all_reduce f64[1000] max (in it)" in row and row.rstrip().endswith("  -"), text
    assert "#2 " not in text and "#3 " in text and "ranks 0, 2" in text, text
    assert re.search(r"-> rank 1 had not come to call #8; came \S+ [mu]?s after the failure", text)
    assert 'GROUP 1 "pair" · 2 ranks · had not failed' in text
    for width in (60, 100):
        table = [line for line in tool(folder, width=width).splitlines() if "#" in line[:7]]
        assert table and max(map(len, table)) <= width, table


def test_torchs_analyser_finds_the_missing_rank(
    late_job: tuple[Path, list[Outcome]], tmp_path: Path
) -> None:
    folder, _ = late_job
    out = tmp_path / "new" / "out"
    assert f"{out}: 3 files for torchfrtrace" in tool(folder, "--torch", out)
    verdict = analysed(out)
    assert "Not all ranks joining collective, sequence number: 8" in verdict, verdict
    assert "missing ranks: {1}" in verdict and "gloo:all_reduce" in verdict, verdict
    # It reads all files of a folder: old ones must not mix with new ones.
    text = tool(folder, "--torch", out, code=1)
    assert f"{out} cannot be written: it is not empty" in text and "-> rank 1" in text
    file = tmp_path / "file"
    file.touch()
    assert "cannot be written" in tool(folder, "--torch", file, code=1)


def test_bad_files_are_named_and_the_rest_is_read(
    late_job: tuple[Path, list[Outcome]], tmp_path: Path
) -> None:
    folder, _ = late_job
    paths = [Path(shutil.copy(path, tmp_path)) for path in sorted(folder.iterdir())]
    whole = paths[0].read_bytes()
    bad = {
        "cut.dump": (whole[:20000], "is cut off: it has 20000 bytes"),
        "short.dump": (whole[:8], "is cut off: it has 8 bytes"),
        "board.dump": (changed(whole, dumped_ns=0), "is a board, and not a dump"),
        "empty.dump": (b"", "is not a dump of shmcoll"),
        "other.dump": (b"#!/bin/sh\n" * 5000, "is not a dump of shmcoll"),
        "newer.dump": (changed(whole, version=9), "is of version 9, and this tool reads version"),
        "zero.dump": (changed(whole, record_count=0), "is damaged"),
        "odd.dump": (changed(whole, record_count=1 << 30), "is damaged"),
        "long.dump": (whole + b"x", "is damaged"),
        "old.dump": (of_an_older_job(whole), "is of another job (yesterday), which is older"),
    }
    for name, (data, _) in bad.items():
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "pipe.dump")
    (tmp_path / "notes.txt").write_text("not a dump, and not said to be one")
    said = json.loads(tool(tmp_path, tmp_path / "nothing", "--json", code=1))
    problems = {problem.split(" ")[0]: problem for problem in said["problems"]}
    for name, (_, wanted) in bad.items():
        assert wanted in problems[str(tmp_path / name)], (name, problems)
    assert "is not a file" in problems[str(tmp_path / "pipe.dump")]
    assert "No such file" in problems[str(tmp_path / "nothing")]
    assert len(problems) == len(bad) + 2, problems
    assert said["groups"][0]["not_come"] == [1] and len(said["dumps"]) == 3
    assert "is older" not in tool(tmp_path / "old.dump")
    assert "no dump with a group in it" in tool(tmp_path / "cut.dump", code=3)
    (tmp_path / "hollow").mkdir()
    assert "has no file *.dump" in tool(tmp_path / "hollow", code=3)


def test_a_name_cannot_steer_a_terminal_and_may_be_too_long(tmp_path: Path) -> None:
    (tmp_path / "\x1b]0;title\x07\nnote: all is well.dump").write_text("no dump")
    found = dumps.find([tmp_path, tmp_path / ("x" * 5000)])
    assert found.problems == [
        f"{tmp_path}/?]0;title??note: all is well.dump is not a dump of shmcoll",
        f"{tmp_path}/{'x' * 5000} cannot be opened: File name too long",
    ]


def changed(data: bytes, **fields: Any) -> bytes:
    header = layout.Header.from_buffer_copy(data)
    for name, value in fields.items():
        setattr(header, name, value)
    return bytes(header) + data[len(bytes(header)) :]


def of_an_older_job(data: bytes) -> bytes:
    header = layout.Header.from_buffer_copy(data)
    day = 86400 * 10**9
    data = changed(data, pid=1, job=b"yesterday", dumped_unix_ns=header.dumped_unix_ns - day)
    for part in range(header.group_count):
        at = header.header_bytes + part * header.group_bytes + layout.Group.nonce.offset
        data = data[:at] + bytes(range(part, part + 16)) + data[at + 16 :]
    return data


def test_a_rank_that_no_dump_knows_has_its_number_alone(
    late_job: tuple[Path, list[Outcome]],
) -> None:
    (report, *_) = postmortem.make_reports(dumps.find([late_job[0]]).dumps)
    assert report.group.name_rank(1) == "rank 1" and report.group.pid(1) is not None
    assert report.group.name_rank(200) == "rank 200" and report.group.pid(200) is None


def test_no_damage_of_a_file_ends_the_tool(
    late_job: tuple[Path, list[Outcome]], tmp_path: Path
) -> None:
    folder, _ = late_job
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    random_ = random.Random(1)
    read = 0
    for _ in range(150):
        for name, data in whole.items():
            damaged = bytearray(data)
            for _ in range(random_.choice((1, 20, 300))):
                # Most of it where the header and the groups are.
                limit = random_.choice((400, 4096 + 2048, len(data)))
                damaged[random_.randrange(min(limit, len(data)))] = random_.randrange(256)
            (tmp_path / name).write_bytes(damaged)
        found = dumps.find([tmp_path])
        reports = postmortem.make_reports(found.dumps)
        if reports:
            read += 1
            assert postmortem._lines(found.dumps, reports)
            json.dumps(postmortem._as_json(found.dumps, reports, []))
            flight.files(reports)
        for dump in found.dumps:
            dump.close()
    assert read > 50


# ---- other ways to fail ----


def differ_or_die(rank: Rank, ends: int) -> str:
    """Rank 2 dies, or makes another call; this rank's own settings hold."""
    if rank.rank == 0 and ends:
        os.environ["SHMCOLL_DUMP"] = "/nowhere/at/all"
    if rank.rank == 3:
        os.environ["SHMCOLL_BOARD"] = "counts" if ends else "off"
    rank.init()
    rank.board[rank.rank] = os.getpid()
    rank.sync()
    pids = [int(rank.board[other]) for other in (0, 1)]
    tensor = torch.ones(10)
    dist.all_gather([torch.empty(10) for _ in range(4)], tensor)
    dist.reduce_scatter(torch.empty(10), [tensor] * 4)
    if rank.rank == 2 and ends:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank.rank == 2:
        while min(member.entered for member in board.look(pids).members) < 3:
            pass  # the others are not in their call
        return fails(rank, lambda: dist.broadcast(tensor, 0))
    return fails(rank, lambda: dist.all_reduce(tensor))


def test_a_rank_that_dies_has_no_dump_and_one_without_a_folder_says_so(tmp_path: Path) -> None:
    ended = outcomes(4, differ_or_die, 1, env={"SHMCOLL_DUMP": str(tmp_path)})
    assert [each.exit for each in ended] == [0, 0, -9, 0], ended
    first = ended[0]
    said = "SHMCOLL_DUMP=/nowhere/at/all: no dump will be written: No such file or directory"
    assert first.output.count("SHMCOLL_DUMP") == 1 and said in first.output, first.output
    assert "rank 2 (pid" in first.value and "died" in first.value
    assert "SHMCOLL_DUMP" not in ended[1].output
    text = tool(tmp_path)
    assert (
        "-> no dump of rank 0: killed, ended by its own error" in text
        and "peer dead: rank 2 (pid" in text
    )
    assert "-> no dump of rank 2, which ended before the others failed" in text, text
    # What the others knew of the rank that died stands in its own line.
    died = r"rank 2  pid \d+  no dump; died(, killed by signal 9)?; its last call was reduce_scatter #2"
    assert re.search(died, text) and re.search(r"rank 0  pid \d+  no dump\n", text), text
    assert "kept no calls" in text and re.search(r"#2  reduce_scatter f32\[10\] sum +\?\n", text), (
        text
    )
    said = json.loads(tool(tmp_path, "--json"))
    (group,) = said["groups"]
    assert group["without_dump"] == [0, 2] and group["found_by"] in (0, 1, 3)
    end = group["ranks"][2]["ended"]
    assert (end["rank"], end["died"], end["last_call"]) == (2, True, 2), end
    assert end["exit_code"] is None and end["signal"] in (9, None)
    # These are facts, which no tool takes from the words of the reason.
    (tmp_path / "reworded").mkdir()
    for path in tmp_path.glob("*.dump"):
        data = path.read_bytes()
        for word in (b"died", b"killed", b"last", b"pid", b"found by"):
            data = data.replace(word, b"?" * len(word))
        (tmp_path / "reworded" / path.name).write_bytes(data)
    assert "died" not in json.loads(tool(tmp_path / "reworded", "--json"))["groups"][0]["reason"]
    reworded = tool(tmp_path / "reworded")
    assert re.search(died, reworded) and "ended before the others failed" in reworded, reworded
    out = tmp_path / "out"
    assert "--allow-incomplete-ranks" in tool(tmp_path, "--torch", out)
    assert "missed FR dumps from ranks" in analysed(out, "--allow-incomplete-ranks")


def test_calls_that_differ_are_seen_by_both(tmp_path: Path) -> None:
    folder, out = tmp_path / "dumps", tmp_path / "out"
    folder.mkdir()
    ended = outcomes(4, differ_or_die, 0, env={"SHMCOLL_DUMP": str(folder)})
    assert all(each.ok and "different calls" in each.value for each in ended), ended
    assert "the group is not on a board (SHMCOLL_BOARD=off" in ended[3].output, ended[3].output
    text = tool(folder, "--torch", out)
    assert "-> the calls differ from #3 on" in text and "mismatch: ranks made different" in text
    row = next(line for line in text.splitlines() if line.startswith("  -> #3"))
    assert "all_reduce f32[10] sum (in it)" in row and "broadcast f32[10] root 0 (in it)" in row
    # The analyser wants the dumps of all ranks: rank 3 made the calls of rank 0.
    content = flight.pickle.loads((out / f"{flight.PREFIX}0").read_bytes())
    assert content["version"] == flight.VERSION and content["pg_status"].keys() == {"0"}
    (out / f"{flight.PREFIX}3").write_bytes(flight.pickle.dumps(content))
    verdict = analysed(out)
    assert "Collective sequence number: 3 has errors" in verdict, verdict
    # Which rank it takes for the culprit depends on the order of the folder.
    assert "Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: '" in verdict, verdict
    assert "sequence number: 1" not in verdict and "sequence number: 2" not in verdict


def test_many_groups_that_fail_are_written_once_each(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        groups = [dist.new_group([0, 1], group_desc=f"part {i}") for i in range(3)]
        for _ in range(2):
            dist.barrier(groups[2])
        rank.sync()
        if rank.rank == 0:
            for group in (None, *groups):
                fails(rank, lambda: dist.all_reduce(torch.ones(1), group=group))

    run(2, body, env={"SHMCOLL_DUMP": str(tmp_path)})
    sizes = sorted(path.stat().st_size for path in tmp_path.iterdir())
    part = (sizes[-1] - sizes[0]) // 3
    assert sizes == [4096 + part] * 3 + [4096 + 4 * part], sizes
    said = json.loads(tool(tmp_path, "--json"))
    names = ["default_pg", "part 0", "part 1", "part 2"]
    assert [group["name"] for group in said["groups"]] == names, said
    assert all("has left the group" in group["reason"] for group in said["groups"])
    assert said["groups"][3]["newest"] == 3 and said["groups"][0]["without_dump"] == [1]


def test_a_process_that_loses_groups_for_weeks_does_not_fill_the_disk(tmp_path: Path) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        for _ in range(260):
            group = dist.new_group([0, 1])
            if rank.rank == 0:
                rank.sync()
                fails(rank, lambda group=group: dist.all_reduce(torch.ones(1), group=group))
            else:
                dist.destroy_process_group(group)
                rank.sync()

    done = outcomes(2, body, env={"SHMCOLL_DUMP": str(tmp_path)})
    assert len(list(tmp_path.iterdir())) == 256
    said = "this process has written 256 dumps, and writes no more"
    assert [outcome.output.count(said) for outcome in done] == [1, 0], done


# ---- messages ----


def message_that_nobody_takes(rank: Rank) -> str:
    """Two messages arrive, one in each direction; then ranks 0 and 2 of three use different tags."""
    rank.sync()  # the time-out is the rendezvous's, too
    rank.init(timeout=seconds(1))
    dist.new_group([1, 2], group_desc="pair")
    tensor = torch.ones(1 << 18)
    if rank.rank == 0:
        dist.send(tensor, 2, tag=5)
        dist.recv(tensor, 2)
        return fails(rank, lambda: dist.send(tensor, 2, tag=7))
    if rank.rank == 2:
        dist.recv(tensor, 0, tag=5)
        dist.send(tensor, 0)
        # Its time-out alone does not fail the group, so it would write no dump.
        fails(rank, lambda: dist.recv(tensor, 0, tag=8))
    return fails(rank, dist.barrier)


@pytest.fixture(scope="module")
def messages_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages")
    ended = outcomes(3, message_that_nobody_takes, env={"SHMCOLL_DUMP": str(folder)})
    assert all(each.ok and "Timed out after 1" in each.value for each in ended), ended
    assert f"{folder}/out: 3 files for torchfrtrace" in tool(folder, "--torch", folder / "out")
    return folder / "out"


def written(folder: Path, rank: int) -> dict[str, Any]:
    content: dict[str, Any] = flight.pickle.loads((folder / f"{flight.PREFIX}{rank}").read_bytes())
    return content


def test_the_two_sides_of_a_message_have_one_number(messages_out: Path) -> None:
    files = [written(messages_out, rank) for rank in range(3)]
    sides = [
        {
            (entry["process_group"][0], entry["collective_seq_id"]): (
                *(entry["profiling_name"], entry["state"]),
                *(entry["input_dtypes"][0], entry["input_sizes"][0][0]),
            )
            for entry in file["entries"]
            if entry["is_p2p"]
        }
        for file in files
    ]
    for number, (first, last) in enumerate(
        (("send 0->1", "recv 1<-0"), ("recv 0<-1", "send 1->0"))
    ):
        for side, name in ((sides[0], first), (sides[2], last)):
            wanted = (f"gloo:{name}", "completed", "Float", 1 << 18)
            assert side["0:0-2", number + 1] == wanted, side
    # What did not come together has numbers of its own.
    numbers = {key for side in (sides[0], sides[2]) for key in side if side[key][1] == "started"}
    assert numbers == {("0:0-2", 3), ("0:0-2", 4)} and sides[1] == {}, sides
    assert [len(side) for side in sides] == [3, 0, 3], sides
    config = files[0]["pg_config"]
    assert config["0:0-2"]["ranks"] == "[0, 2]" and config["0"]["ranks"] == "[0, 1, 2]"
    assert "messages of ranks 0 and 2" in config["0:0-2"]["desc"]


def test_a_message_that_is_over_counts_only_with_a_record_on_both_sides() -> None:
    def message(
        operation: str, peer: int, tag: int, pair: int, begin_ns: int, status: int = 0
    ) -> Any:
        facts = ("float32", 10, 40, status, begin_ns, begin_ns + 5)
        return board.Message(0, operation, peer, tag, pair, *facts)

    sends = [message("send", 1, 1, 0, 100), message("send", 1, 2, 1, 200)]
    # The second one has found no message, and so has the number 0, like the first send.
    receives = [message("recv", 0, 2, 1, 150), message("recv", 0, 1, 0, 300, status=1)]
    seats = {
        rank: SimpleNamespace(messages=messages, member=SimpleNamespace(pending=None))
        for rank, messages in enumerate((sends, receives))
    }
    found = flight_messages.find(cast(postmortem.Report, SimpleNamespace(seats=seats)))
    said = [[(side.operation, side.tag, side.over) for side in each] for each in found.pop((0, 1))]
    assert said == [[("recv", 2, True), ("send", 2, True)], [("recv", 1, False)]] and not found


@pytest.mark.long
def test_torchs_analyser_finds_the_side_of_a_message_that_is_missing(messages_out: Path) -> None:
    verdict = analysed(messages_out)
    found = set(re.findall(r"collective: (\S+ \S+)\n(?:.*)missing ranks: ({\d})", verdict))
    assert {("gloo:send 0->1", "{2}"), ("gloo:recv 1<-0", "{0}")} <= found, verdict
    assert "sequence number: 2" not in verdict, verdict


# ---- on GPUs ----


def on_gpu(called: int, ended: range, pending: str) -> dict[str, Any]:
    """What a seat has of collectives on a GPU, and of one message there."""

    def call(number: int) -> board.Call:
        ns = 10**9 + 100 * number
        return board.Call(number, "all_reduce", "float32", "sum", None, 8, 32, 0, ns, ns + 50)

    device = board.Device(called, ended.stop - 1, 10**9 + 100 * ended.stop, pending, "", ())
    message = dataclasses.replace(call(ended.stop), operation="send", number=1)
    calls = [board.DeviceCall(number, call(number), None, 0) for number in ended]
    return {"device": device, "calls": [*calls, board.DeviceCall(99, message, 1, 7)]}


@pytest.mark.long
def test_torchs_analyser_finds_the_rank_whose_gpu_misses_a_call(
    late_job: tuple[Path, list[Outcome]], tmp_path: Path
) -> None:
    """Rank 0's ring has lost calls 1 to 3. Call 6 is pending on two GPUs, and rank 2 has not made it.

    Rank 0 has made call 7, too, of which its dump has the number alone: nothing is said of it.
    """
    pending = "all_reduce #6 (float32[8], sum)"
    gpus = [on_gpu(7, range(4, 6), pending), on_gpu(6, range(1, 6), pending)]
    gpus.append(on_gpu(5, range(1, 6), ""))
    reports = postmortem.make_reports(dumps.find([late_job[0]]).dumps)
    report = next(each for each in reports if each.group.world_size == 3)
    for seat, gpu in zip((report.seats[rank] for rank in range(3)), gpus):
        seat.member = dataclasses.replace(seat.member, device=gpu["device"])
        seat.device = gpu["calls"]
        seat.calls = {number: call for number, call in seat.calls.items() if number < 8}
    flight.write(tmp_path / "out", [report])
    files = [written(tmp_path / "out", rank) for rank in range(3)]
    assert [
        [
            (entry["collective_seq_id"], entry["state"])
            for entry in file["entries"]
            if entry["process_group"][0] == "0:gpu"
        ]
        for file in files
    ] == [
        [(4, "completed"), (5, "completed"), (6, "started")],
        [(4, "completed"), (5, "completed"), (6, "started")],
        [(4, "completed"), (5, "completed")],
    ]
    assert files[2]["pg_config"]["0:gpu"]["ranks"] == "[0, 1, 2]"
    verdict = analysed(tmp_path / "out")
    assert "Not all ranks joining collective, sequence number: 6" in verdict, verdict
    assert re.search(r"group info: 0:gpu:default_pg, on GPUs\n", verdict), verdict
    assert "missing ranks: {2}" in verdict and "sequence number: 7" not in verdict, verdict


# ---- on demand ----


def on_demand(rank: Rank) -> list[str]:
    said = [refused("too-early.dump")]
    rank.init()
    dist.barrier()
    received = torch.zeros(4)
    if rank.rank == 0:
        work = dist.irecv(received, 1, tag=7)
        waiting = threading.Thread(target=work.wait)
        waiting.start()
        path = rank.directory / "rank0.dump"
        while True:  # until the thread waits, which is some time after it has been started
            shmcoll.dump(path)
            with dumps.Dump(path) as dump:
                if any(group.pending and group.pending.waited_for for group in dump.groups):
                    break
        rank.sync()
        waiting.join()
    else:
        shmcoll.dump(rank.directory / "rank1.dump")
        rank.sync()
        dist.send(torch.ones(4), 0, tag=7)
    child = os.fork()
    if child == 0:
        os._exit(0 if "has made no group" in refused(str(rank.directory / "child.dump")) else 1)
    said.append(str(os.waitpid(child, 0)[1]))
    with pytest.raises(OSError, match="dump: cannot write /nowhere/at/all: No such file"):
        shmcoll.dump("/nowhere/at/all")
    said.append((rank.directory / f"rank{rank.rank}.dump").read_bytes().hex())
    return said


def refused(path: str) -> str:
    with pytest.raises(RuntimeError) as raised:
        shmcoll.dump(path)
    return str(raised.value)


def test_a_dump_on_demand_shows_what_a_job_waits_for(tmp_path: Path) -> None:
    said = run(2, on_demand)
    for rank, (early, child, data) in enumerate(said):
        assert early.startswith("shmcoll: dump: this process has made no group") and child == "0"
        (tmp_path / f"{rank}.dump").write_bytes(bytes.fromhex(data))
    text = tool(tmp_path)
    assert "had not failed" in text and "1 receive pending" in text and "tag 7" in text, text
    assert '-> 1 rank waited for rank 1 of "default_pg"' in text, text
    (group,) = json.loads(tool(tmp_path, "--json"))["groups"]
    assert group["reason"] is None and group["ranks"][0]["pending_receives"] == 1


def test_without_a_board_there_is_no_dump_on_demand() -> None:
    def body(rank: Rank) -> str:
        rank.init()
        return refused("never.dump")

    (text,) = run(1, body, env={"SHMCOLL_BOARD": "off"})
    assert "SHMCOLL_BOARD=off, so this process keeps nothing" in text


def test_it_needs_a_name_and_loads_no_torch() -> None:
    done = subprocess.run(
        [*PYTHON, "shmcoll", "postmortem"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 64 and "usage: shmcoll postmortem" in done.stderr
    done = run_and_look_at_modules("postmortem", "/nowhere")
    assert done.returncode == 0, done.stderr
