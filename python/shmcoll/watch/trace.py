# SPDX-License-Identifier: BSD-3-Clause
"""`shmcoll trace`: a window of time of all ranks, as a file for ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import gzip
import itertools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shmcoll.watch import board, layout, text
from shmcoll.watch.board import Call, DeviceCall, Member, Message, Record, Watcher, now_ns
from shmcoll.watch.parser import EXIT_USAGE
from shmcoll.watch.rings import DeviceRing, MessageRing, Ring, in_turn
from shmcoll.watch.text import EXIT_NOTHING

EXIT_WRITTEN = 0
EXIT_FAILED = 1  # the file cannot be written
__all__ = ["EXIT_FAILED", "EXIT_NOTHING", "EXIT_USAGE", "EXIT_WRITTEN", "main"]

_POLL_S = (0.0005, 0.010)  # shortest and longest time from one poll to the next
_LOOK_S = 0.1  # for new groups of known processes
_BINS = 500  # of the counters
_PART_OF_RING = 96  # of 256 records: if a poll finds more, the next one comes sooner
_FIRST_THREAD = 1 << 23  # next to torch's threads: Linux has no thread of such a number
_LEAST_BIN_NS = 1_000_000

Event = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = text.PidParser(
        prog="shmcoll trace",
        description="Collects the calls of all ranks for some seconds, and writes them as a file for "
        "ui.perfetto.dev. It asks no process. Ctrl-C ends the time early.",
        epilog="exit codes: 0, 1 the file cannot be written, 3 no group found",
    )
    parser.add_argument(
        "-s",
        dest="seconds",
        type=text.seconds,
        required=True,
        metavar="SECONDS",
        help="how long to collect",
    )
    parser.add_argument(
        "-o", dest="output", type=Path, required=True, metavar="FILE", help="the file to write"
    )
    parser.add_argument(
        "--join",
        type=Path,
        action="append",
        default=[],
        metavar="TORCH_TRACE",
        help="add a trace of torch's profiler, which is read when the time is over (again for more)",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    text.exit_on_signals()
    with Watcher(options.pids or None) as watcher:
        watcher.scan()
        collector = Collector(watcher)
        if not collector.tracks:
            print("\n".join([*collector.notes(), *text.nothing(options.pids)]))
            return EXIT_NOTHING
        try:
            with text.replaced(options.output) as file:
                collector.collect(options.seconds)
                joined = Joined(options.join)
                trace = joined.add(build(collector, joined.shift_ns, joined.first_thread))
                json.dump(trace, file, separators=(",", ":"))
        except OSError as error:
            said = f"shmcoll trace: {options.output} cannot be written: {error.strerror or error}"
            print(board.printable(said), file=sys.stderr)
            return EXIT_FAILED
    for note in [*collector.notes(), *joined.problems]:
        print(note)
    said = trace["otherData"]
    # One rank may be in many groups.
    ranks = {(each["pid"], each["global_rank"]) for each in said["ranks"]}
    print(
        f"{options.output}: {said['calls']} calls of {len(ranks)} ranks, {said['lost']} lost"
        + (f"; {said['messages']} messages, {said['messages_lost']} lost" * (said["messages"] > 0))
        + (
            f"; {said['gpu_calls']} calls and messages on GPUs, {said['gpu_calls_lost']} lost"
            * (said["gpu_calls"] > 0)
        )
    )
    return EXIT_FAILED if joined.problems else EXIT_WRITTEN


# ---- traces of torch's profiler ----


def _arguments_of(call: Call) -> dict[str, object]:
    names = ("number", "operation", "dtype", "count", "bytes")
    arguments: dict[str, object] = {name: getattr(call, name) for name in names}
    optional = {name: getattr(call, name) for name in ("reduction", "root")}
    return arguments | {name: value for name, value in optional.items() if value is not None}


class Joined:
    """Traces of torch's profiler. Their times are microseconds of CLOCK_REALTIME since a moment that they
    name, so ours are shifted to that clock."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.problems: list[str] = []
        self.shift_ns = 0  # to add to CLOCK_MONOTONIC
        self.first_thread = _FIRST_THREAD if paths else 1
        self._events: list[Event] = []
        self._base: int | None = None
        for path in paths:
            try:
                self._read(path)
            except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
                self.problems.append(f"note: {path} is not joined: {type(error).__name__}: {error}")

    def _read(self, path: Path) -> None:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
            trace = json.load(file)
        base = int(trace["baseTimeNanoseconds"])
        if self._base is None:
            self._base = base
            realtime = time.clock_gettime_ns(time.CLOCK_REALTIME)
            self.shift_ns = realtime - now_ns() - base
        for event in trace["traceEvents"]:
            if "ts" in event:
                event["ts"] += (base - self._base) / 1e3
            self._events.append(event)

    def add(self, trace: dict[str, Any]) -> dict[str, Any]:
        if self._base is not None:
            # Ours come last: their names of processes hold.
            trace["traceEvents"] = self._events + trace["traceEvents"]
            trace["baseTimeNanoseconds"] = self._base
            trace["otherData"]["clock"] = "CLOCK_REALTIME since baseTimeNanoseconds"
        return trace


# ---- collecting ----


@dataclasses.dataclass
class Track:
    """One rank of one group."""

    member: Member  # as it was when the track began
    ring: Ring
    records: list[Record]
    message_ring: MessageRing
    messages: list[Record]
    device_ring: DeviceRing
    device: list[Record]  # whose times are nanoseconds

    def poll(self) -> int:
        """Takes what there is; how much that was."""
        calls, messages, device = (
            ring.poll() for ring in (self.ring, self.message_ring, self.device_ring)
        )
        self.records += calls
        self.messages += messages
        self.device += device
        return max(len(calls), len(messages), 2 * len(device))


class Collector:
    """Takes the records of all ranks while they are written."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.tracks: dict[tuple[int, int, int], Track] = {}  # by Member.key
        self._without_times: set[int] = set()
        self._look(from_start=False)
        for track in self.tracks.values():
            track.ring.poll()  # what ended before
            track.message_ring.poll()
            track.device_ring.poll()

    def notes(self) -> list[str]:
        notes = [f"note: {problem}" for problem in self._watcher.problems]
        for pid in sorted(self._without_times):
            notes.append(f"note: process {pid} keeps no times (SHMCOLL_BOARD=counts, or its clock)")
        return notes

    def _look(self, from_start: bool) -> None:
        """For groups that are new."""
        for one in self._watcher.boards.values():
            if not one.process.has_times:
                self._without_times.add(one.process.pid)
                continue
            for member in one.members():
                if not member.making and member.key not in self.tracks:
                    ring = Ring(one, member.part, from_start=from_start)
                    messages = MessageRing(one, member.part, from_start=from_start)
                    device = DeviceRing(one, member.part, from_start=from_start)
                    self.tracks[member.key] = Track(member, ring, [], messages, [], device, [])

    def collect(self, seconds: float) -> None:
        """Ctrl-C ends it early."""
        gc.disable()  # it would look through all records again and again
        try:
            self._poll_until(now_ns() + round(seconds * 1e9))
        except KeyboardInterrupt:
            pass
        finally:
            gc.enable()
        for track in self.tracks.values():
            running = track.ring.running()
            track.poll()
            if running and running.number > track.ring.newest:  # it has not ended meanwhile
                track.records.append(running)
            track.records = in_turn(track.records)  # also of calls that two polls took

    def _poll_until(self, end_ns: int) -> None:
        pause, look_ns = _POLL_S[0], 0
        while (now := now_ns()) < end_ns:
            most = self._poll()
            if most > _PART_OF_RING:
                pause /= 2
            elif most < _PART_OF_RING / 4:
                pause *= 1.5
            pause = min(max(pause, _POLL_S[0]), _POLL_S[1])
            self._watcher.scan_some(1)
            if now >= look_ns:
                self._look(from_start=True)
                look_ns = now + round(_LOOK_S * 1e9)
            time.sleep(max(0.0, min(pause, (end_ns - now_ns()) / 1e9)))

    def _poll(self) -> int:
        """Takes what there is; the most records that one rank had."""
        return max((track.poll() for track in self.tracks.values()), default=0)


# ---- the file ----


def build(collector: Collector, shift_ns: int = 0, first_thread: int = 1) -> dict[str, Any]:
    """A trace in the JSON format of Chrome. Times are microseconds of CLOCK_MONOTONIC, shifted."""
    tracks = sorted(collector.tracks.values(), key=lambda track: track.member.begun_ns)
    builder = _Builder(tracks, shift_ns, first_thread)
    return {
        "traceEvents": builder.events(),
        "displayTimeUnit": "ns",
        "otherData": {
            "tool": "shmcoll trace",
            "clock": "CLOCK_MONOTONIC",
            "calls": sum(len(track.records) for track in tracks),
            "lost": sum(track.ring.lost for track in tracks),
            "messages": sum(len(track.messages) for track in tracks),
            "messages_lost": sum(track.message_ring.lost for track in tracks),
            "gpu_calls": sum(len(track.device) for track in tracks),
            "gpu_calls_lost": sum(track.device_ring.lost for track in tracks),
            "ranks": [
                {
                    "pid": track.member.process.pid,
                    "group": track.member.description,
                    "id": track.member.nonce.hex(),
                    "rank": track.member.rank,
                    "global_rank": _global_rank(track.member),
                    "calls": len(track.records),
                    "lost": track.ring.lost,
                    "messages": len(track.messages),
                    "messages_lost": track.message_ring.lost,
                    "gpu_calls": len(track.device),
                    "gpu_calls_lost": track.device_ring.lost,
                }
                for track in tracks
            ],
        },
    }


def _global_rank(member: Member) -> int | None:
    known = member.global_ranks[member.rank]
    return known if known >= 0 else None


def _name_rank(member: Member) -> str:
    """As the job counts, as far as that is known."""
    known = _global_rank(member)
    return str(member.rank if known is None else known)


class _Lanes:
    """Messages of a rank may pend at the same time, and slices of one track may not overlap."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self.places: list[Event] = []

    def take(self, begin: int, end: int) -> tuple[int, bool]:
        """The first lane that is free then, and whether it is new. pre: begins grow."""
        for lane, until in enumerate(self._ends):
            if until <= begin:
                self._ends[lane] = end
                return lane, False
        self._ends.append(end)
        return len(self._ends) - 1, True


class _Builder:
    def __init__(self, tracks: Sequence[Track], shift_ns: int, first_thread: int) -> None:
        self._tracks = tracks
        self._shift_ns = shift_ns
        self._first_thread = first_thread
        # One clock for all, so that what came first in one process and then in another stays so.
        self._clock = max((track.ring.board for track in tracks), key=lambda each: each.ticks_known)
        ends = [record.end or record.begin for track in tracks for record in track.records]
        ends += [record.end for track in tracks for record in track.messages]
        self._end = max(ends, default=0)
        self._threads: dict[int, int] = defaultdict(int)  # by process
        self._places = [self._place(track) for track in tracks]
        self._message_names: list[Event] = []
        self._arrow_ids = itertools.count(1)  # Perfetto drops arrows whose id is not a number

    def events(self) -> list[Event]:
        events = [*self._calls(), *self._arrows(), *self._messages(), *self._counters()]
        events += self._gpu_calls()
        # A slice comes before the arrows that begin or end in it.
        events.sort(key=lambda event: (event["ts"], event["ph"] != "X"))
        return [*self._names(), *self._message_names, *events]

    def _ns(self, ticks: int) -> int:
        return self._clock.ns(ticks) + self._shift_ns

    def _us(self, ticks: int) -> float:
        return self._ns(ticks) / 1e3

    def _place(self, track: Track) -> Event:
        pid = track.member.process.pid
        self._threads[pid] += 1
        return {"pid": pid, "tid": self._first_thread + self._threads[pid] - 1}

    def _names(self) -> Iterator[Event]:
        for track, place in zip(self._tracks, self._places):
            member = track.member
            if place["tid"] == self._first_thread:
                whole = f'rank {_name_rank(member)} (rank {member.rank} of "{member.description}")'
                yield {"ph": "M", "name": "process_name", **place, "args": {"name": whole}}
                order = {"sort_index": int(_name_rank(member))}
                yield {"ph": "M", "name": "process_sort_index", **place, "args": order}
            name = f'"{member.description}" (rank {member.rank} of {member.world_size})'
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}

    def _calls(self) -> Iterator[Event]:
        for track, place in zip(self._tracks, self._places):
            for record in track.records:
                begin, end = self._us(record.begin), self._us(self._end_of(record))
                call = track.ring.board.call(record)
                arguments = _arguments_of(call)
                if call.status:
                    arguments["failed"] = board.name_of(layout.STATUSES, call.status)
                if not record.end:
                    arguments["runs"] = True
                yield {
                    "ph": "X",
                    "name": call.operation,
                    "cat": "shmcoll",
                    "ts": begin,
                    "dur": round(max(0.0, end - begin), 3),
                    **place,
                    "args": arguments,
                }

    def _end_of(self, record: Record) -> int:
        """A call that runs is drawn until the newest moment that is known."""
        return record.end or max(self._end, record.begin)

    def _arrows(self) -> Iterator[Event]:
        """From the rank that came last to a call to each rank that was in it then."""
        calls: dict[tuple[bytes, int], list[tuple[Record, Event]]] = defaultdict(list)
        for track, place in zip(self._tracks, self._places):
            for record in track.records:
                calls[track.member.nonce, record.number].append((record, place))
        for ranks in calls.values():
            last, source = max(ranks, key=lambda each: each[0].begin)
            for record, place in ranks:
                if place is source or self._end_of(record) < last.begin:
                    continue
                common = {"name": "last to come", "cat": "arrival", "id": next(self._arrow_ids)}
                common["ts"] = self._us(last.begin)
                yield {"ph": "s", **common, **source}
                yield {"ph": "f", "bp": "e", **common, **place}

    def _messages(self) -> Iterator[Event]:
        """Slices, and an arrow from each send to its receive."""
        sides: dict[object, list[tuple[Message, Event]]] = defaultdict(list)
        for track in self._tracks:
            own, lanes = track.member.rank, _Lanes()
            for record in sorted(track.messages, key=lambda each: each.begin):
                message = track.message_ring.board.message(track.member, record)
                lane, is_new = lanes.take(record.begin, record.end)
                place = self._lane_place(track, lane, is_new, lanes)
                slice_ = self._slice(record, message, place)
                yield slice_
                ends = (own, message.peer) if message.operation == "send" else (message.peer, own)
                sides[track.member.nonce, ends, message.tag, message.pair].append((message, slice_))
        for both in sides.values():
            yield from self._message_arrow(both)

    def _slice(self, record: Record, message: Message, place: Event) -> Event:
        begin, end = self._us(record.begin), self._us(record.end)
        arguments: dict[str, object] = dataclasses.asdict(message)
        for each in ("status", "begin_ns", "end_ns"):
            del arguments[each]
        if message.status:
            arguments["failed"] = board.name_of(layout.STATUSES, message.status)
        common = {"ph": "X", "name": message.operation, "cat": "message", "ts": begin}
        return {**common, "dur": round(max(0.0, end - begin), 3), **place, "args": arguments}

    def _gpu_calls(self) -> Iterator[Event]:
        """From when a call was enqueued to when the library saw its end; those of a lane begin one after the
        other at the earliest."""
        for track in self._tracks:
            lanes = _Lanes()
            board_ = track.device_ring.board
            calls = [board_.device_call(record) for record in track.device]
            before: dict[object, int] = {}
            for each in sorted(calls, key=lambda each: each.call.begin_ns):
                call, end_ns = each.call, each.call.end_ns or 0
                channel = (each.peer, call.operation if each.peer is not None else None)
                begin_ns = min(end_ns, max(call.begin_ns, before.get(channel, 0)))
                before[channel] = end_ns
                lane, is_new = lanes.take(begin_ns, end_ns)
                place = self._lane_place(track, lane, is_new, lanes, "GPU")
                yield self._gpu_slice(each, begin_ns, place)

    def _gpu_slice(self, each: DeviceCall, begin_ns: int, place: Event) -> Event:
        call, end_ns = each.call, each.call.end_ns or 0
        arguments = _arguments_of(call)
        arguments["waited_before_us"] = round((begin_ns - call.begin_ns) / 1e3, 3)
        if each.peer is not None:
            arguments |= {"peer": each.peer, "tag": each.tag}
        return {
            "ph": "X",
            "name": call.operation,
            "cat": "gpu",
            "ts": (begin_ns + self._shift_ns) / 1e3,
            "dur": round(max(0, end_ns - begin_ns) / 1e3, 3),
            **place,
            "args": arguments,
        }

    def _lane_place(
        self, track: Track, lane: int, is_new: bool, lanes: _Lanes, what: str = "messages"
    ) -> Event:
        if is_new:
            place = self._place(track)
            lanes.places.append(place)
            name = f'{what} of "{track.member.description}"'
            self._message_names.append(
                {"ph": "M", "name": "thread_name", **place, "args": {"name": name}}
            )
        return lanes.places[lane]

    def _message_arrow(self, both: list[tuple[Message, Event]]) -> Iterator[Event]:
        found = {message.operation: event for message, event in both}
        if len(both) != 2 or len(found) != 2:
            return
        send, receive = found["send"], found["recv"]
        common = {"name": "message", "cat": "message", "id": next(self._arrow_ids)}
        for phase, event in (("s", send), ("f", receive)):
            at = {"ts": event["ts"], "pid": event["pid"], "tid": event["tid"]}
            if phase == "f":
                # An arrow does not go back in time: a receive may begin before its send does.
                at["ts"], at["bp"] = max(event["ts"], send["ts"]), "e"
            yield {"ph": phase, **common, **at}

    def _counters(self) -> Iterator[Event]:
        begins = [record.begin for track in self._tracks for record in track.records]
        if not begins:
            return
        first = self._ns(min(begins))
        width = max(_LEAST_BIN_NS, (self._ns(self._end) - first) // _BINS)
        bins: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for track in self._tracks:
            for record in track.records:
                if record.end:
                    index = (self._ns(record.end) - first) // width
                    bins[track.member.process.pid][index] += record.bytes
        for pid, counts in bins.items():
            for index in sorted({each + more for each in counts for more in (0, 1)}):
                value = round(counts.get(index, 0) * 1e3 / width, 3)
                yield {
                    "ph": "C",
                    "name": "collectives",  # Perfetto shows this and the key: "collectives MB/s"
                    "pid": pid,
                    "ts": (first + index * width) / 1e3,
                    "args": {"MB/s": value},
                }
