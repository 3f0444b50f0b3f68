# SPDX-License-Identifier: BSD-3-Clause
"""What errors and lines of the log say: the rank of the job first, who has ended and why, one line for all."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import _shmcoll_autoload
import shmcoll
from ranks import Rank, outcomes, run, seconds
from shmcoll._log import say
from shmcoll.watch.board import look

MEMBERS = [7, 3, 5]  # of the job, in the group's order


def named(rank: int) -> str:
    return f'rank {MEMBERS[rank]} (rank {rank} of group "mixed")'


def alive(rank: int) -> str:
    """The beginning of a text that also has the pid."""
    return f'rank {MEMBERS[rank]} (rank {rank} of group "mixed", pid '


def sum_of(group: Any, count: int = 3) -> None:
    group.allreduce([torch.ones(count)]).wait()


def only(rank: int, call: Callable[[Any], object]) -> Callable[[Rank, Any], None]:
    """That rank of the group does something else than the others, which make a sum."""

    def body(mine: Rank, group: Any) -> None:
        if mine.rank == rank:
            call(group)
        else:
            sum_of(group)

    return body


def nothing(_: Any) -> None:
    pass


def receive(mine: Rank, group: Any) -> None:
    if mine.rank == 0:
        group.recv([torch.ones(3)], 1, 4).wait()
    else:
        time.sleep(2.5)


def mixed_message(mine: Rank, group: Any) -> None:
    if mine.rank == 0:
        group.recv([torch.ones(3)], 1, 4).wait()
    elif mine.rank == 1:
        group.send([torch.ones(5)], 0, 4).wait()


def uneven(mine: Rank, group: Any) -> None:
    outputs = [torch.ones(3), torch.ones(1 if mine.rank == 0 else 2), torch.ones(2)]
    group.allgather([outputs], [torch.ones(3 if mine.rank == 0 else 2)]).wait()


def split(mine: Rank, group: Any) -> None:
    sizes = [1, 2 if mine.rank == 0 else 1, 1]
    group.alltoall_base(
        torch.ones(3), torch.ones(sum(sizes)), [1, 1, 1], sizes, dist.AllToAllOptions()
    ).wait()


def roots(mine: Rank, group: Any) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 1 if mine.rank == 0 else 2
    group.broadcast([torch.ones(3)], options).wait()


# What a rank of three does -> what the error of the first one says.
SENTENCES = [
    ("a time-out", only(1, nothing), [f"{named(0)}: all_reduce #2", f"waiting for {alive(1)}"]),
    (
        "different calls",
        only(1, lambda group: group.barrier().wait()),
        ["called all_reduce #2", f"{named(1)} called barrier #2"],
    ),
    ("a rank that left", only(1, lambda g: g.shutdown()), [f"{alive(1)}", "has left the group ("]),
    ("a rank that aborts", only(1, lambda g: g.abort()), [f"{named(1)} aborted the group"]),
    (
        "a rank that was killed",
        only(1, lambda _: os.kill(os.getpid(), signal.SIGKILL)),
        # How it ended stands after "died", unless the parent has waited for it by then.
        [f"{alive(1)}", ") died", "; its last call was barrier #1"],
    ),
    (
        "a message that does not come",
        receive,
        [
            f"{named(0)}: recv",
            f"from {named(1)}, tag 4 failed: ",
            f"the matching send of {alive(1)}",
        ],
    ),
    (
        "a message of another size",
        mixed_message,
        [f"{named(0)}: recv", f"the send of {named(1)} that matches it is of another type"],
    ),
    (
        "sizes",
        uneven,
        [f"sizes differ: {named(1)} gives 2 elements, but {named(0)} has room for 1"],
    ),
    (
        "splits",
        split,
        [f"splits differ: {named(0)} sends 2 elements to {named(1)}, which expects 1"],
    ),
    ("roots", roots, [f"{named(0)} called broadcast #2 (float32[3], root 3)", "root 5)"]),
]


@pytest.mark.parametrize(
    "body, words", [row[1:] for row in SENTENCES], ids=[r[0] for r in SENTENCES]
)
def test_an_error_names_the_rank_of_the_job_first(
    body: Callable[[Rank, Any], None], words: list[str]
) -> None:
    def ranks(mine: Rank) -> str:
        mine.sync()  # the time-out is the rendezvous's, too
        group = mine.group("mixed", timeout=1.0, members=MEMBERS)
        group.barrier().wait()
        try:
            body(mine, group)
        except RuntimeError as error:
            return str(error)
        time.sleep(2.5 if mine.rank == 1 else 0.0)
        return "no error"

    text = outcomes(3, ranks)[0].value
    assert [word for word in words if word not in text] == [], text


def test_a_group_that_is_not_made_names_the_rank_of_the_job_first() -> None:
    def body(mine: Rank) -> str:
        if mine.rank == 1:
            return ""
        with pytest.raises(RuntimeError) as caught:
            mine.group("mixed", timeout=0.5, members=MEMBERS)
        return str(caught.value)

    for rank, text in enumerate(run(3, body)):
        if rank != 1:
            assert f"{named(rank)}: " in text and "Timed out" in text
            assert f"{named(1)} (has not come)" in text


def test_a_rank_without_the_library_is_named_as_the_job_numbers_it() -> None:
    options = SimpleNamespace(global_ranks_in_group=MEMBERS, group_rank=1)
    error = ImportError("no glue")
    assert _shmcoll_autoload.cannot_load(options, error) == "rank 3 cannot load shmcoll: no glue"
    options.global_ranks_in_group = []  # of the default group
    assert _shmcoll_autoload.cannot_load(options, error).startswith("rank 1 cannot load")


def test_a_group_is_called_what_its_user_calls_it() -> None:
    def body(mine: Rank) -> Any:
        mine.init()
        group = dist.new_group([1, 2], timeout=seconds(1.0), group_desc="data_parallel")
        if mine.rank == 0:
            time.sleep(1.0)
            return None
        dist.barrier(group=group)
        facts = shmcoll.describe(group)
        if mine.rank == 2:
            time.sleep(2.5)
            return None
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(3), group=group)
        return str(caught.value), [facts[key] for key in ("desc", "global_rank", "members")]

    text, facts = run(3, body)[1]
    assert 'rank 1 (rank 0 of group "data_parallel"): all_reduce' in text
    assert 'waiting for rank 2 (rank 1 of group "data_parallel", pid' in text
    assert facts == ["data_parallel", 1, "1,2"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\u00e4" * 50, "\u00e4" * 31),  # 63 bytes would end in a half of one
        ("x" + "\u20ac" * 50, "x" + "\u20ac" * 20),
        ("two\nlines=1", "two?lines=1"),
    ],
)
def test_the_name_of_a_group_is_whole_characters_of_one_line(said: str, shown: str) -> None:
    def body(mine: Rank) -> Any:
        mine.init()
        group = dist.new_group(timeout=seconds(5.0), group_desc=said)
        dist.barrier(group=group)
        desc = shmcoll.describe(group)["desc"]
        with pytest.raises(dist.DistBackendError) as caught:
            dist.all_reduce(torch.ones(3 + mine.rank), group=group)
        return desc, str(caught.value)

    for desc, text in run(2, body):
        assert desc == shown
        assert f'group "{shown}" failed: ' in text


@pytest.mark.parametrize("how", ["hook", "process"])
def test_an_exception_explains_why_a_rank_left(how: str) -> None:
    """At the end of a program by sys.excepthook, in a process of multiprocessing by its finalizers."""

    def body(mine: Rank) -> str:
        mine.init()
        dist.barrier()
        if mine.rank == 1:
            try:
                raise KeyError("no such layer")
            except KeyError as error:
                if how == "hook":
                    import sys

                    sys.excepthook(type(error), error, error.__traceback__)
                else:
                    from shmcoll._backend import _leave_child

                    _leave_child()
            os._exit(1)
        with pytest.raises(RuntimeError) as caught:
            dist.all_reduce(torch.ones(3))
        (member,) = look([os.getpid()]).members
        assert member.end and member.end.rank == 1 and member.end.last_call == 1, member
        return f"{caught.value}\n{member.end.exception}"

    text, fact = outcomes(2, body)[0].value.split("\n")
    assert re.search(r"because of KeyError: 'no such layer' \(test_words\.py:\d+\)", text), text
    assert re.fullmatch(r"KeyError: 'no such layer' \(test_words\.py:\d+\)", fact), fact


def test_the_line_of_an_exception_is_the_programs_not_that_of_a_deprecated_function() -> None:
    import typing_extensions
    from shmcoll._events import _text

    raises = typing_extensions.deprecated("as some of torch's functions are")(dist.barrier)
    with pytest.raises(ValueError, match="not been initialized") as caught:
        with pytest.warns(DeprecationWarning):
            raises()
    assert re.search(r"\(test_words\.py:\d+\)$", _text(caught.value)), _text(caught.value)


def test_one_rank_says_for_all_that_a_rank_is_late() -> None:
    """Eight ranks, one of which is late by three periods. Each rank's own program is told."""
    late = 0.4

    def body(mine: Rank) -> int:
        told: list[str] = []
        mine.init()
        dist.barrier()
        mine.sync()
        shmcoll.on_late(told.append)  # now: on a busy machine a rank is late at the rendezvous
        mine.sync()
        if mine.rank == 7:
            time.sleep(3.2 * late)
        dist.all_reduce(torch.ones(3))
        time.sleep(0.1)
        return len(told)

    found = outcomes(8, body, env={"SHMCOLL_LATE_MS": str(int(late * 1000))})
    lines = [line for each in found for line in each.output.splitlines() if "has waited" in line]
    lines = [line for line in lines if "at the rendezvous" not in line]  # of a busy machine
    assert 1 <= len(lines) <= 4, lines
    assert any("6 other ranks have made this call" in line for line in lines), lines
    assert all("for rank 7 (pid" in line for line in lines if "6 other" in line)
    assert all(each.value >= 1 for each in found[:7])
    assert found[7].value == 0


def test_on_late_leaves_files_alone_that_took_its_descriptors_numbers() -> None:
    """As of a daemon that closes all descriptors, and then opens its files."""

    def body(mine: Rank) -> None:
        before = {each.name for each in Path("/proc/self/fd").iterdir() if each.exists()}
        shmcoll.on_late(print)
        pipe = {each.name for each in Path("/proc/self/fd").iterdir() if each.exists()} - before
        taken = sorted(int(name) for name in pipe)  # the reader first
        (thread,) = [each for each in threading.enumerate() if each.name == "shmcoll-late"]
        assert len(taken) == 2
        file = os.memfd_create("log")
        for number in taken:  # the last one ends the pipe, and so the thread
            os.dup2(file, number)
        thread.join(20)
        assert not thread.is_alive()
        for number in taken:
            os.fstat(number)

    assert outcomes(1, body)[0].ok


def test_a_line_about_a_late_rank_names_the_rank_of_the_job_first() -> None:
    late = 0.4

    def body(mine: Rank) -> None:
        group = mine.group("mixed", members=MEMBERS)
        mine.sync()
        if mine.rank == 1:
            time.sleep(2 * late)
        sum_of(group)

    found = outcomes(3, body, env={"SHMCOLL_LATE_MS": str(int(late * 1000))})
    lines = [line for each in found for line in each.output.splitlines() if "has waited" in line]
    lines = [line for line in lines if "at the rendezvous" not in line]  # of a busy machine
    assert lines, found
    for line in lines:
        assert re.search(r"rank [75] pid \d+\] warn: rank [75] \(rank [02] of", line), line
        assert f"for {alive(1)}" in line, line


def test_one_rank_says_for_all_that_messages_of_a_rank_are_late() -> None:
    """Two ranks receive from a third, which is late by three periods. Each rank's own program is told."""
    late = 0.5

    def body(mine: Rank) -> int:
        told: list[str] = []
        group = mine.group("mixed", members=MEMBERS)
        mine.sync()
        shmcoll.on_late(told.append)  # now: on a busy machine a rank is late at the rendezvous
        mine.sync()
        if mine.rank == 0:
            time.sleep(3.2 * late)
            for peer in (1, 2):
                group.send([torch.ones(3)], peer, peer).wait()
        else:
            group.recv([torch.ones(3)], 0, mine.rank).wait()
        mine.sync()
        return len(told)

    found = outcomes(3, body, env={"SHMCOLL_LATE_MS": str(int(late * 1000))})
    lines = [line for each in found for line in each.output.splitlines() if "has waited" in line]
    lines = [line for line in lines if "at the rendezvous" not in line]  # of a busy machine
    # After one and two periods, and once more where a rank began to wait much later than the other.
    assert 1 <= len(lines) <= 3, lines
    for line in lines:
        assert re.search(
            r"rank [35] pid \d+\] warn: rank [35] \(rank [12] of group .mixed.\): recv", line
        )
        assert f"the matching send of {alive(0)}" in line, line
    assert found[1].value >= 1 and found[2].value >= 1
    assert found[0].value == 0


def test_lines_go_to_a_file_with_date_rank_and_pid(tmp_path: Path) -> None:
    def body(mine: Rank) -> int:
        mine.init()
        dist.all_reduce(torch.ones(3))
        say("warn", "a line of Python's")
        return os.getpid()

    env = {"SHMCOLL_LOG": "trace", "SHMCOLL_LOG_FILE": f"{tmp_path}/log.%r.%p"}
    found = outcomes(2, body, env=env)
    for rank, each in enumerate(found):
        assert "shmcoll 2" not in each.output
        text = (tmp_path / f"log.{rank}.{each.value}").read_text()
        stamp = (
            rf"\[shmcoll \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{3}} rank {rank} pid {each.value}\] "
        )
        assert all(re.match(stamp, line) for line in text.splitlines())
        assert re.search(
            r"trace: rank \d: all_reduce #1 \(float32\[3\], sum\) on .* took .* us: ok", text
        )
        assert re.search(stamp + "warn: a line of Python's$", text, re.M)
        facts = re.findall(r'info: group "default_pg": (.*)', text)
        assert bool(facts) == (rank == 0)
        assert rank != 0 or facts[0].endswith("ranks 0,1 of the job")


def test_a_log_file_that_cannot_be_opened_costs_no_line() -> None:
    def body(mine: Rank) -> None:
        mine.init()
        say("warn", "a line of Python's")

    env = {"SHMCOLL_LOG": "info", "SHMCOLL_LOG_FILE": "/no/such/folder/log"}
    output = outcomes(2, body, env=env)[0].output
    assert output.count("SHMCOLL_LOG_FILE: cannot open /no/such/folder/log (No such file") == 1
    assert 'info: group "default_pg"' in output and "warn: a line of Python's" in output


def test_a_log_file_that_is_a_pipe_without_a_reader_holds_up_no_rank(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    env = {"SHMCOLL_LOG": "info", "SHMCOLL_LOG_FILE": str(tmp_path / "pipe")}

    def body(mine: Rank) -> None:
        mine.init()
        say("warn", "a line of Python's")

    output = outcomes(2, body, env=env)[0].output
    assert "pipe (No such device or address); lines go to stderr" in output
    assert 'info: group "default_pg"' in output and "warn: a line of Python's" in output
