# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll status` looks at ranks from outside: who is late, stopped, dead, or waits in a cycle."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import system_calls
from ranks import Rank, Run, outcomes, run
from shmcoll.watch import board, layout, quota, unseen
from shmcoll.watch import status as status_tool
from tools import run_and_look_at_modules
from trees import plant

LIMIT_S = 40.0
LATE = ("--late", "0.2")
Answer = tuple[int, dict[str, Any]]


def status(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmcoll", "status", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def look_until(
    pids: dict[int, int], wanted: Callable[[int, dict[str, Any]], Any], *words: str
) -> Answer:
    """The exit code and the JSON, once they are what the test waits for."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        done = status("--json", *LATE, *words, *pids.values())
        assert done.stderr == "", done.stderr
        answer = done.returncode, json.loads(done.stdout)
        try:
            if wanted(*answer):
                return answer
        except (IndexError, KeyError, TypeError):
            pass  # the group is not there yet
        assert time.monotonic() < deadline, f"exit {done.returncode}: {done.stdout}"
        time.sleep(0.05)


def release(run: Run) -> None:
    """The ranks may go on: see wait_for_release()."""
    run.board[0] = 1


def wait_for_release(rank: Rank) -> None:
    while not rank.board[0]:
        time.sleep(0.01)


def come_and_wait(rank: Rank) -> None:
    """See await_all()."""
    rank.board[1 + rank.rank] = 1
    wait_for_release(rank)


def await_all(run: Run) -> None:
    """Until both ranks have come that far."""
    while not all(run.board[1:3]):
        time.sleep(0.01)


def observe(look: Callable[[Run], Answer], found: list[Answer]) -> Callable[[Run], None]:
    def meanwhile(run: Run) -> None:
        try:
            found.append(look(run))
        finally:
            release(run)

    return meanwhile


def test_a_late_rank_and_a_stopped_one() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        tensor = torch.ones(1000, dtype=torch.float64)
        dist.all_reduce(tensor)
        if rank.rank == 2:
            wait_for_release(rank)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)

    def look(run: Run) -> Answer:
        return look_until(run.pids, lambda code, said: said["waited_for"][0]["waited_for_by"] == 2)

    def look_stopped(run: Run) -> Answer:
        answer = look(run)
        os.kill(run.pids[2], signal.SIGSTOP)
        try:
            look_until(
                run.pids,
                lambda _, said: said["groups"][0]["ranks"][2]["process_state"] == "stopped",
            )
            text = status(*LATE, *run.pids.values()).stdout
            alone = status(*LATE, run.pids[0]).stdout
        finally:
            os.kill(run.pids[2], signal.SIGCONT)
        assert f"rank 1  pid {run.pids[1]}  was not looked at; process: " in alone, alone
        assert f"which is stopped: kill -CONT {run.pids[2]}" in text, text
        assert 'of "default_pg"' in text and "not in a call for" in text, text
        return answer

    found: list[Answer] = []
    run(3, body, meanwhile=observe(look_stopped, found))
    ((code, said),) = found
    assert code == 2
    assert said["deadlock"] == [] and len(said["waited_for"]) == 1
    assert said["waited_for"][0]["rank"] == 2
    (group,) = said["groups"]
    assert (group["name"], group["world_size"], group["state"]) == ("default_pg", 3, "made")
    first, _, last = group["ranks"]
    assert first["in_call"] and first["waits_for"] == [2] and first["waits_s"] > 0.1
    assert first["call"] == "all_reduce #2 (float64[1000], max)"
    assert not last["in_call"] and last["number"] == 1
    assert last["call"] == "all_reduce #1 (float64[1000], sum)"
    done = first["operations"]["all_reduce"]
    assert done["count"] == 1 and done["bytes"] == 8000 and done["seconds"] > 0


def test_a_killed_rank_and_the_reason_that_the_others_know() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.barrier()
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(dist.DistBackendError):
            dist.barrier()
        wait_for_release(rank)

    def look(run: Run) -> Answer:
        return look_until(run.pids, lambda code, said: said["groups"][0]["state"] == "failed")

    found: list[Answer] = []
    ended = outcomes(3, body, meanwhile=observe(look, found))
    assert [each.exit for each in ended] == [0, -9, 0], ended
    ((code, said),) = found
    assert code == 1
    (group,) = said["groups"]
    assert "rank 1 (pid" in group["reason"] and "died" in group["reason"]
    assert group["found_by"] in (0, 2)
    dead = group["ranks"][1]
    assert not dead["board"] and dead["pid"] is not None
    # The same as facts. The signal is known until somebody has waited for the process.
    signal_ = dead["ended"].pop("signal")
    assert signal_ in (9, None) and group["ranks"][0]["ended"] is None
    assert dead["ended"] == {
        "rank": 1,
        "pid": dead["pid"],
        "died": True,
        "exit_code": None,
        "exception": None,
        "last_call": 1,
    }
    assert dead["text"] == ("died, killed by signal 9" if signal_ else "died")


def test_calls_that_differ() -> None:
    """The first rank that sees it fails the group, so each rank has the words of both calls."""

    def body(rank: Rank) -> None:
        rank.init()
        dist.barrier()
        tensor = torch.ones(4 if rank.rank else 3)
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(tensor)
        wait_for_release(rank)

    def failed(code: int, said: dict[str, Any]) -> bool:
        return code == 1 and all(
            "that the group has failed" in rank["text"] for rank in said["groups"][0]["ranks"]
        )

    def look(run: Run) -> Answer:
        code, said = look_until(run.pids, failed)
        return code, {**said, "lines": status(*run.pids.values()).stdout.splitlines()}

    found: list[Answer] = []
    run(2, body, meanwhile=observe(look, found))
    ((_, said),) = found
    (group,) = said["groups"]
    assert group["state"] == "failed" and group["found_by"] in (0, 1)
    texts, reason = [rank["text"] for rank in group["ranks"]], group["reason"]
    for each in (reason, *(text for text in texts if ": " in text)):  # both may have found it
        assert "float32[3]" in each and "float32[4]" in each and "all_reduce" in each, each
    # The reason is said once, after the arrow, if there is one.
    assert [": " in text for text in texts] in ([False] * 2, [True] * 2)
    assert [line.split("  ")[-1] for line in said["lines"][1:3]] == texts
    assert said["lines"][3:] == [f"  -> the group has failed: {reason}"]


def test_a_message_that_nobody_takes() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        if rank.rank == 0:
            dist.recv(torch.zeros(6), 1, tag=9)
            late = dist.irecv(torch.zeros(3), 1, tag=7)
            other = dist.irecv(torch.zeros(5), 1, tag=8)
            late.wait()
            other.wait()
        else:
            dist.send(torch.ones(6), 0, tag=9)
            wait_for_release(rank)
            dist.send(torch.ones(3), 0, tag=7)
            dist.send(torch.ones(5), 0, tag=8)

    def look(run: Run) -> Answer:
        return look_until(
            run.pids,
            lambda code, said: (
                code == 2
                and said["groups"][0]["ranks"][0]["pending_receives"]
                and said["groups"][0]["ranks"][1]["operations"]["send"]
            ),
        )

    found: list[Answer] = []
    run(2, body, meanwhile=observe(look, found))
    ((_, said),) = found
    rank = said["groups"][0]["ranks"][0]
    assert rank["pending_receives"] == 2 and rank["pending_sends"] == 0
    oldest = rank["oldest_message"]
    assert (oldest["operation"], oldest["peer"], oldest["tag"]) == ("recv", 1, 7)
    assert oldest["bytes"] == 12 and oldest["age_s"] >= 0.2
    assert [each["rank"] for each in said["waited_for"]] == [1]
    sent = said["groups"][0]["ranks"][1]["operations"]["send"]
    assert (sent["count"], sent["bytes"]) == (1, 24)


QUOTAS = {  # files of a control group, and what is said of half a CPU
    "v2": {
        "proc/PID/cgroup": "0::/job/rank\n",
        "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/job/cpu.stat": "usage_usec 9\nnr_periods 50\nnr_throttled 20\n",
        "sys/fs/cgroup/job/rank/cpu.max": "max 100000\n",
    },
    "v1": {
        "proc/PID/cgroup": "4:memory:/\n1:cpu,cpuacct:/job\n0::/\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/job/cpu.stat": "nr_periods 50\nnr_throttled 20\nthrottled_time 9\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    },
    "wide": {
        "proc/PID/cgroup": "0::/job\n",
        "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
        "sys/fs/cgroup/job/cpu.stat": "nr_periods 50\nnr_throttled 2\n",
    },
}
QUOTAS["one rank"] = QUOTAS["v2"]


@pytest.mark.parametrize("late", [True, False], ids=["a late rank", "none is in a call"])
@pytest.mark.parametrize("form", QUOTAS)
def test_ranks_that_a_cpu_quota_holds_back(
    form: str,
    late: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The group says it once, whatever its ranks do at the moment of the look."""

    def body(rank: Rank) -> None:
        rank.init()
        dist.barrier()
        if not late or rank.rank == 1:
            wait_for_release(rank)
        dist.barrier()

    def there(code: int, said: dict[str, Any]) -> bool:
        ranks = said["groups"][0]["ranks"]
        idle = [each["number"] == 1 and not each["in_call"] for each in ranks]
        return ranks[0]["waits_for"] == [1] if late else idle == [True, True]

    def look(run: Run) -> Answer:
        held = QUOTAS[form]
        for rank, pid in run.pids.items():
            files = {name.replace("PID", str(pid)): text for name, text in held.items()}
            if form == "one rank" and rank == 0:
                files = {f"proc/{pid}/cgroup": "0::/elsewhere\n"}
            plant(tmp_path, files)
        monkeypatch.setattr(quota, "ROOT", tmp_path)
        look_until(run.pids, there)
        pids = [str(pid) for pid in run.pids.values()]
        code = status_tool.main(["--json", *LATE, *pids])
        said = json.loads(capsys.readouterr().out)
        status_tool.main(pids)
        said["lines"] = capsys.readouterr().out.splitlines()
        return code, said

    found: list[Answer] = []
    run(2, body, meanwhile=observe(look, found))
    ((_, said),) = found
    (group,) = said["groups"]
    assert all("quota" not in each["text"] for each in group["ranks"])
    lines = [line for line in said["lines"] if "quota" in line]
    if form == "wide":
        assert group["cpu_quotas"] == lines == []
        return
    place = "/sys/fs/cgroup/cpu/job" if form == "v1" else "/sys/fs/cgroup/job"
    ranks, names = ([1], "rank 1") if form == "one rank" else ([0, 1], "rank 0, rank 1")
    assert group["cpu_quotas"] == [{"cpus": 0.5, "place": place, "used_up": 0.4, "ranks": ranks}]
    assert lines == [
        f"  the CPU quota of {names} (0.5 CPUs, {place}) was used up in 40% of the periods so far"
    ]
    assert said["lines"].index(lines[0]) == 3  # the title and the ranks stand before it


def test_a_cycle_over_two_groups_is_a_deadlock() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        one, two = dist.new_group([0, 1]), dist.new_group([1, 2])
        pair = dist.new_group([0, 2])
        # 0 waits in `one` for 1, 1 in `two` for 2, 2 in `pair` for 0.
        dist.barrier((one, two, pair)[rank.rank])

    def look(run: Run) -> Answer:
        answer = look_until(run.pids, lambda code, said: len(said["deadlock"]) == 3)
        text = status(*LATE, *run.pids.values()).stdout
        for pid in run.pids.values():
            os.kill(pid, signal.SIGKILL)
        assert "DEADLOCK: each of these waits for the next" in text, text
        return answer

    found: list[Answer] = []
    ended = outcomes(3, body, meanwhile=observe(look, found))
    # Killed, or told of another's death before its turn came.
    assert all(each.exit == -9 or "died" in each.text for each in ended), ended
    ((code, said),) = found
    assert code == 2
    edges = {(text.split(" waits in ")[0], text.rsplit(" for ", 1)[1]) for text in said["deadlock"]}
    assert len(edges) == 3 and all("barrier #1" in text for text in said["deadlock"])
    # Ranks are those of the job first, and of the group where that differs.
    assert ("rank 2 (1 here)", "rank 0") in edges, said["deadlock"]


def test_the_deadlocks_of_two_jobs_are_both_said() -> None:
    """Here two pairs of ranks that share no group they wait in."""

    def body(rank: Rank) -> None:
        rank.init()
        groups = [dist.new_group(pair) for pair in ([0, 1], [0, 1], [2, 3], [2, 3])]
        mine = groups[rank.rank // 2 * 2 :][:2]
        dist.barrier(mine[rank.rank % 2])

    def look(run: Run) -> Answer:
        answer = look_until(run.pids, lambda code, said: len(said["deadlocks"]) == 2)
        answer[1]["text"] = status(*LATE, *run.pids.values()).stdout
        for pid in run.pids.values():
            os.kill(pid, signal.SIGKILL)
        return answer

    found: list[Answer] = []
    outcomes(4, body, meanwhile=observe(look, found))
    ((code, said),) = found
    pairs = [sorted(text.split(" waits in ")[0][:6] for text in one) for one in said["deadlocks"]]
    assert code == 2 and sorted(pairs) == [["rank 0", "rank 1"], ["rank 2", "rank 3"]]
    assert said["deadlock"] == said["deadlocks"][0]
    assert said["text"].count("DEADLOCK: each of these waits for the next") == 2, said["text"]


def test_a_group_that_is_being_made() -> None:
    def body(rank: Rank) -> None:
        if rank.rank == 1:
            wait_for_release(rank)
        rank.init()
        dist.barrier()

    def look(run: Run) -> Answer:
        look_until(run.pids, lambda code, said: code == 2)
        os.kill(run.pids[0], signal.SIGSTOP)
        try:
            stopped = lambda _, said: said["groups"][0]["ranks"][0]["process_state"] == "stopped"  # noqa: E731
            return look_until(run.pids, stopped)
        finally:
            os.kill(run.pids[0], signal.SIGCONT)

    found: list[Answer] = []
    run(2, body, meanwhile=observe(look, found))
    ((_, said),) = found
    (group,) = said["groups"]
    assert group["state"] == "making" and group["ranks"][1]["text"] == "has not come"
    text = group["ranks"][0]["text"]
    assert re.fullmatch(r"waits .* for the other ranks; process: stopped", text), text


def test_half_a_nonce_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a part is not taken at one moment: the nonce may be from before the rest."""
    read = board.Image._group
    seen: set[tuple[int, int]] = set()

    def read_half(self: board.Image, offset: int) -> layout.Group:
        group = read(self, offset)
        if (self.process.pid, offset) not in seen:
            seen.add((self.process.pid, offset))
            group.nonce[8:] = bytes(8)
        return group

    def body(rank: Rank) -> None:
        rank.init()
        rank.sync()
        come_and_wait(rank)

    def look(run: Run) -> Answer:
        await_all(run)
        monkeypatch.setattr(board.Image, "_group", read_half)
        members = board.look(list(run.pids.values())).members
        assert len(seen) == 2 and len(members) == 2
        assert members[0].nonce == members[1].nonce and any(members[0].nonce[8:])
        return 0, {}

    run(2, body, meanwhile=observe(look, []))


def test_closed_groups_and_forked_children_do_not_show() -> None:
    def body(rank: Rank) -> None:
        rank.init()
        other = dist.new_group()
        dist.destroy_process_group(other)
        child = os.fork()
        if child == 0:
            while os.getppid() != 1 and not rank.board[0]:
                time.sleep(0.01)
            os._exit(0)
        rank.board[1 + rank.rank] = child
        rank.sync()
        wait_for_release(rank)
        os.waitpid(child, 0)

    def look(run: Run) -> Answer:
        answer = look_until(run.pids, lambda code, said: all(run.board[1:3]))
        inherited = status("--json", *run.board[1:3])
        assert inherited.returncode == 3, inherited.stdout
        assert json.loads(inherited.stdout) == {
            "schema": 1,
            "problems": [],
            "waited_for": [],
            "deadlock": [],
            "deadlocks": [],
            "groups": [],
        }
        return answer

    found: list[Answer] = []
    run(2, body, meanwhile=observe(look, found))
    ((code, said),) = found
    assert code == 0 and [group["name"] for group in said["groups"]] == ["default_pg"]


@pytest.mark.parametrize("level", ["off", "counts"])
def test_less_is_kept_on_demand(level: str) -> None:
    def body(rank: Rank) -> None:
        rank.init()
        dist.barrier()
        come_and_wait(rank)

    def look(run: Run) -> Answer:
        await_all(run)
        done = status("--json", *run.pids.values())
        return done.returncode, json.loads(done.stdout)

    found: list[Answer] = []
    run(2, body, env={"SHMCOLL_BOARD": level}, meanwhile=observe(look, found))
    ((code, said),) = found
    if level == "off":
        assert (code, said["groups"]) == (3, [])
        return
    rank = said["groups"][0]["ranks"][0]
    assert code == 0 and rank["level"] == "counts" and rank["call"] is None
    assert rank["operations"]["barrier"]["count"] == 1 and rank["number"] == 1


ALONE = """
import subprocess, sys, torch.distributed as dist
dist.init_process_group("shmcoll", rank=0, world_size=1, store=dist.HashStore())
dist.barrier()
import os
sys.exit(subprocess.run([sys.executable, "-m", "shmcoll", "status", str(os.getpid())]).returncode)
"""


def test_it_needs_no_capabilities() -> None:
    tool = shutil.which("setpriv")
    if os.geteuid() != 0 or tool is None:
        pytest.skip("needs root and setpriv")
    drop = (tool, "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs")
    command = [*drop, sys.executable, "-c", ALONE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert "not in a call for" in done.stdout and "last barrier #1" in done.stdout, done.stdout


# ---- a process without a board ----


def body_without_memfd(rank: Rank, who: tuple[int, ...], error: int) -> float:
    """Two groups, calls of three sizes, messages; these ranks can make no memfd."""
    if rank.rank in who:
        system_calls.refuse(system_calls.MEMFD_CREATE, error)
        with pytest.raises(OSError) as refused:
            os.memfd_create("x")
        assert refused.value.errno == error
    rank.init()
    total = 0.0
    for group in (None, dist.new_group([0, 1])):
        for count in (1, 3000, 1 << 20):
            tensor = torch.full((count,), rank.rank + 1.0)
            dist.all_reduce(tensor, group=group)
            total += tensor.mean().item()
    tensor = torch.full((1 << 18,), float(rank.rank))
    (dist.send if rank.rank else dist.recv)(tensor, 1 - rank.rank)
    wait_for_release(rank)
    return total + tensor.mean().item()


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS], ids=errno.errorcode.get)
def test_without_a_memfd_a_group_works_and_status_says_why_it_is_not_shown(error: int) -> None:
    said: list[str] = []

    def look(run: Run) -> None:
        try:
            deadline = time.monotonic() + LIMIT_S
            while not all(unseen.is_unseen(pid) for pid in run.pids.values()):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            done = status(*run.pids.values())
            said.append(done.stdout)
            assert done.returncode == 3 and done.stderr == "", done
            said.append(json.loads(status("--json", *run.pids.values()).stdout)["problems"][0])
        finally:
            release(run)

    ended = outcomes(2, body_without_memfd, (0, 1), error, meanwhile=look)
    assert [each.value for each in ended] == [19.0, 19.0], ended
    for each in ended:
        assert each.output.count("cannot make a memfd") == 1, each.output
        assert f"({os.strerror(error)})" in each.output and each.output.count("warn") == 1
    pids = re.findall(r"(\d+) \(", said[1])
    assert len(pids) == 2 and "are in a group, but nothing of them can be shown" in said[1]
    assert "each could not make a memfd" in said[1] and said[1] in said[0], said


def test_a_rank_without_a_memfd_is_named_among_those_that_have_one() -> None:
    found: list[str] = []

    def look(run: Run) -> None:
        try:
            deadline = time.monotonic() + LIMIT_S
            text = ""
            while not unseen.is_unseen(run.pids[1]) or text.count("all_reduce 3") < 2:
                assert time.monotonic() < deadline, text
                time.sleep(0.05)
                text = status(*run.pids.values()).stdout
            assert not unseen.is_unseen(run.pids[0])
            found.append(text)
            found.append(str(run.pids[1]))
        finally:
            release(run)

    ended = outcomes(2, body_without_memfd, (1,), errno.EPERM, meanwhile=look)
    assert [each.value for each in ended] == [19.0, 19.0], ended
    assert "memfd" not in ended[0].output and ended[1].output.count("cannot make a memfd") == 1
    text, pid = found
    assert f"rank 1  pid {pid}  cannot be seen: it has no board; process: " in text, text
    assert f"note: process {pid} " in text and "is in a group, but nothing of it" in text, text


def test_a_process_whose_board_is_off_is_said_to_be_so() -> None:
    code = ALONE.replace("import os", "import os, time").replace("dist.barrier()", "")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SHMCOLL_BOARD": "off"},
    )
    assert done.returncode == 3 and "memfd" not in done.stdout + done.stderr, done
    assert "it was started with SHMCOLL_BOARD=off" in done.stdout, done.stdout


def foreign_board(version: int) -> int:
    """A descriptor of this process that looks like a board."""
    fd = os.memfd_create("shmcoll:board")
    start = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    header = layout.Header(
        magic=layout.MAGIC,
        version=version,
        pid=os.getpid(),
        start_time=int(start),
        library=b"9.9.9",
    )
    os.write(fd, bytes(header))
    return fd


def test_a_board_of_another_version_is_a_sentence() -> None:
    fd = foreign_board(layout.VERSION + 1)
    try:
        done = status(os.getpid())
    finally:
        os.close(fd)
    assert done.returncode == 3 and done.stderr == ""
    assert f"process {os.getpid()} has a board of version {layout.VERSION + 1}" in done.stdout
    assert "shmcoll 9.9.9" in done.stdout


WRONG: dict[str, dict[str, int]] = {
    "no records": {"record_count": 0},
    "records that do not fit": {"record_count": 1 << 31},
    "a level that is none": {"level": 9},
    "more parts than the file has": {"group_count": 1 << 10},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_board_that_contradicts_itself_is_a_sentence_in_every_tool(
    what: str, tmp_path: Path
) -> None:
    """Any process may show a file as its board: it must not blind a tool for all others."""
    fields = {"header_bytes": 4096, "group_bytes": 65536, "record_bytes": 64, "record_count": 256}
    fields |= {"group_count": 2, "level": 2, "record_offset": 8192, **WRONG[what]}
    fd = foreign_board(layout.VERSION)
    try:
        header = layout.Header.from_buffer_copy(os.pread(fd, 4096, 0).ljust(4096, b"\0"))
        for name, value in fields.items():
            setattr(header, name, value)
        os.pwrite(fd, bytes(header), 0)
        os.ftruncate(fd, 4096 + 2 * 65536)
        made = layout.Group(state=layout.MADE, rank=0, world_size=1, entered=1, left=1)
        os.pwrite(fd, bytes(made), 4096)
        for words in (
            ["status"],
            ["status", "--json"],
            ["top", "--once"],
            ["trace", "-s", "0.1", "-o", "t"],
        ):
            command = [sys.executable, "-m", "shmcoll", *words, str(os.getpid())]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, cwd=tmp_path
            )
            assert done.returncode == 3 and done.stderr == "", done
            assert f"the board of process {os.getpid()} is damaged" in done.stdout
    finally:
        os.close(fd)


def test_it_says_how_it_looked_when_there_is_nothing() -> None:
    done = status(os.getpid())
    assert done.returncode == 3 and done.stderr == ""
    assert f"no shmcoll group in process {os.getpid()}" in done.stdout
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = status(gone.pid)
    assert done.returncode == 3 and done.stdout.startswith(f"no such process: {gone.pid},"), done
    wrong = status("--lat")
    assert wrong.returncode == 64 and "usage:" in wrong.stderr and wrong.stdout == ""


def test_it_loads_neither_torch_nor_the_library() -> None:
    done = run_and_look_at_modules("status")
    assert done.returncode == 0, done.stderr


def test_it_loads_nothing_that_only_the_version_needs() -> None:
    """That takes longer than all else that it imports; a script may run it once a second."""
    code = "import sys; from shmcoll import cli; cli.main(['status']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "shmcoll.watch.status" in loaded and "importlib.metadata" not in loaded


def test_the_names_are_those_of_the_library() -> None:
    import ctypes

    from shmcoll import _load

    library = ctypes.CDLL(str(_load.library("libshmcoll")))
    for function, names in (
        ("op_kind", layout.OPERATIONS),
        ("dtype", layout.DTYPES),
        ("redop", layout.REDUCTIONS),
        ("status", layout.STATUSES),
    ):
        name = getattr(library, f"shc_{function}_name")
        name.restype = ctypes.c_char_p
        assert [name(index).decode() for index in range(len(names))] == names
        assert name(len(names)).decode() not in names
