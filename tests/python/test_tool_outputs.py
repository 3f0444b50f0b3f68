# SPDX-License-Identifier: BSD-3-Clause
"""Where the tools write to: a reader that has gone, a closed descriptor, a device, a link."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shmcoll.watch.text import replaced

TOOL = (sys.executable, "-m", "shmcoll")
HERE = str(os.getpid())  # not the groups of other tests: what they do changes the exit code
COMMANDS = {
    "status": (HERE,),
    "stacks": (HERE,),
    "topo": (),
    "doctor": ("--no-torch",),
    "top": ("--once", HERE),
    "export": ("--once", "--textfile", "here.prom", HERE),
}


def run(*words: str, folder: Path, stdout: int | None) -> subprocess.CompletedProcess[str]:
    """With None standard output is closed."""
    command = (
        [*TOOL, *words] if stdout is not None else ["sh", "-c", 'exec "$@" >&-', "-", *TOOL, *words]
    )
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, cwd=folder
    )


PRINTS = {name: words for name, words in COMMANDS.items() if name != "export"}
PRINTS |= {"--version": (), "--help": (), "--cflags": ()}


@pytest.mark.parametrize("name", PRINTS)
def test_a_reader_that_has_gone_ends_a_tool_without_a_traceback(name: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(name, *PRINTS[name], folder=tmp_path, stdout=writer)
    finally:
        os.close(writer)
    assert "Traceback" not in done.stderr and done.returncode == 141, done


@pytest.mark.parametrize("name", [*PRINTS, "bench"])
def test_an_output_on_a_full_disk_is_an_error_of_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a buffer each print fails by itself.
    monkeypatch.setenv("PYTHONUNBUFFERED", "1" if name in ("status", "bench") else "")
    words = PRINTS.get(name, ("--backends=gloo", "-g2", "-obarrier", "--point-time=0.01"))
    with open("/dev/full", "w") as full:
        done = run(name, *words, folder=tmp_path, stdout=full.fileno())
    said = "shmcoll: standard output cannot be written: No space left on device\n"
    assert done.stderr == said and done.returncode == 74, done


@pytest.mark.parametrize("words", ["shmcoll status", "shmcoll bench", "shmcoll.bench"])
def test_ctrl_c_ends_a_tool_that_still_loads(words: str, tmp_path: Path) -> None:
    module, *words_of_tool = words.split()
    program = f"""if True:
        import os, runpy, signal, sys

        class Finder:
            def find_spec(self, name, path, target=None):
                if name in ("shmcoll.watch", "shmcoll.bench.options"):
                    os.kill(os.getpid(), signal.SIGINT)

        sys.meta_path.insert(0, Finder())
        sys.argv[1:] = {words_of_tool}
        runpy.run_module("{module}", run_name="__main__")
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.stderr, done.returncode) == ("", 130), done


@pytest.mark.parametrize("name", [*COMMANDS, "bench"])
def test_a_tool_runs_without_standard_output(name: str, tmp_path: Path) -> None:
    words = COMMANDS.get(name, ("--help",))
    seen = run(name, *words, folder=tmp_path, stdout=subprocess.DEVNULL)
    done = run(name, *words, folder=tmp_path, stdout=None)
    assert "Traceback" not in done.stderr and done.returncode == seen.returncode, done


def test_a_terminal_without_unicode_gets_what_it_can_show(tmp_path: Path) -> None:
    done = subprocess.run(
        [*TOOL, "topo"],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0 and done.stderr == b"" and done.stdout.isascii(), done


def test_no_output_and_no_error_output_is_no_verdict() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*TOOL, "--help"], stdout=full, stderr=full, check=False)
    assert done.returncode == 74


def test_a_descriptor_such_as_dev_stdout_is_written_to() -> None:
    """A tool that root runs with `-o /dev/stdout` must not put a file in the place of that."""
    reader, writer = os.pipe()
    with replaced(Path(f"/dev/fd/{writer}")) as file:
        file.write("text")
    os.close(writer)
    with open(reader) as pipe:
        assert pipe.read() == "text"


def test_a_pipe_gets_the_text(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    with replaced(pipe) as file:
        file.write("text")
    reader.join()
    assert found == ["text"] and pipe.is_fifo()


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "target"
    link.symlink_to(target)
    for words in ("first", "second"):  # the target is not there before
        with replaced(link) as file:
            file.write(words)
        assert link.is_symlink() and target.read_text() == words
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_late_time_that_is_no_time_is_bad_usage() -> None:
    for command in ("status", "stacks"):
        for words in ("nan", "inf", "-1", "x"):
            done = subprocess.run(
                [*TOOL, command, f"--late={words}"], capture_output=True, text=True, check=False
            )
            assert done.returncode == 64 and "--late" in done.stderr, done
