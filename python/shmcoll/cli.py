# SPDX-License-Identifier: BSD-3-Clause
"""The tool ``shmcoll``: picks the sub-command, which reads its own arguments."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence

# name -> (text for --help, module whose main(arguments) runs it)
COMMANDS = {
    "bench": ("times collectives of backends side by side on this host", "shmcoll.bench.cli"),
    "run": ("starts ranks on this machine, and serves their store", "shmcoll._launch"),
    "status": (
        "shows the groups of this machine, and who waits for whom",
        "shmcoll.watch.status",
    ),
    "top": (
        "shows what all ranks do, again and again, and who comes last",
        "shmcoll.watch.top",
    ),
    "trace": (
        "collects calls of all ranks for seconds, for ui.perfetto.dev",
        "shmcoll.watch.trace",
    ),
    "postmortem": (
        "shows why a job failed, and the last calls, from its dumps",
        "shmcoll.watch.postmortem",
    ),
    "export": ("writes metrics for Prometheus", "shmcoll.watch.export"),
    "stacks": (
        "shows where ranks are in their programs: waited-for ranks first",
        "shmcoll.watch.stacks",
    ),
    "doctor": ("says whether this machine and this installation are fit", "shmcoll.watch.doctor"),
    "topo": ("shows CPUs, caches and GPUs, and where ranks run", "shmcoll.watch.topo"),
}

# Commands of these commands, which --help lists too.
INNER = {
    "bench compare": "compares two runs: has the first backend become slower?",
    "bench tune": "finds settings that are better on this machine",
}

# For C programs: what to give to a compiler, and CMake.
PATHS = {
    "--cflags": "-I{0}/include",
    "--libs": "-L{0}/lib -lshmcoll -Wl,-rpath,{0}/lib",
    "--cmakedir": "{0}/lib/cmake/shmcoll",
}

EXIT_USAGE = 2
EXIT_OUTPUT = 74  # EX_IOERR of sysexits.h: no verdict has it

# What only a write can say; other files than standard output have their own errors. EIO: a terminal that is gone.
_UNWRITABLE = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main(argv: Sequence[str] | None = None) -> int:
    return run_quietly(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def run_quietly(command: Callable[[], int]) -> int:
    """Its exit code. Ctrl-C, also while a command loads, and an output that cannot be written end it without a
    traceback."""
    if sys.stdout is None:  # its descriptor was closed before
        sys.stdout = open(os.devnull, "w")
    # A name, or a dot of ours, may be no character of the locale.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        return _lose_output(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _lose_output(error: OSError) -> int:
    # What is still in the buffer must not fail when the interpreter ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    if error.errno == errno.EPIPE:  # as of head
        return 128 + signal.SIGPIPE
    from shmcoll._log import tell

    tell(f"shmcoll: standard output cannot be written: {error.strerror}\n")
    return EXIT_OUTPUT


def _run(words: list[str]) -> int:
    command = words[0] if words else "--help"
    if command in ("-h", "--help", "help"):
        print(_help())
        return 0
    if command == "--version":
        print(_version())
        return 0
    if set(words) <= PATHS.keys():
        folder = os.path.dirname(os.path.abspath(__file__))
        print(*(PATHS[option].format(folder) for option in words))
        return 0
    if command not in COMMANDS:
        print(f"shmcoll: {_unknown(command)}", file=sys.stderr)
        return EXIT_USAGE
    _, module = COMMANDS[command]
    code: int = importlib.import_module(module).main(words[1:])
    return code


def _help() -> str:
    texts = {**{name: text for name, (text, _) in COMMANDS.items()}, **INNER}
    width = max(map(len, texts))
    lines = [f"  {name:{width}}  {texts[name]}" for name in sorted(texts)]
    return "\n".join(
        (
            "usage: shmcoll COMMAND ...       (or: python -m shmcoll COMMAND ...)",
            "",
            "Tools around the torch.distributed backend for ranks that share one machine.",
            "",
            "commands:",
            *lines,
            "",
            "shmcoll COMMAND --help describes a command; shmcoll --version says the version.",
            "For C programs: shmcoll --cflags, --libs (compilers), --cmakedir (CMake).",
        )
    )


def _unknown(command: str) -> str:
    import difflib

    what = "option" if command.startswith("-") else "command"
    inner = {name.partition(" ")[2]: name for name in INNER}
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    near = near or [inner[word] for word in difflib.get_close_matches(command, inner, n=1)]
    hint = f"did you mean {near[0]!r}?" if near else f"there is: {', '.join(COMMANDS)}"
    return f"no {what} {command!r}; {hint} (shmcoll --help)"


def _version() -> str:
    import importlib.metadata  # most of what an import of this file would cost

    try:
        return f"shmcoll {importlib.metadata.version('shmcoll')}"
    except importlib.metadata.PackageNotFoundError:
        return "shmcoll, not installed (run from its sources)"
