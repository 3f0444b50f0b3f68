# SPDX-License-Identifier: BSD-3-Clause
"""Several hosts on one machine.

    with Hosts(2, rate="1gbit") as hosts:
        done = hosts.run(1, ["hostname"])
        assert done.wait(10) == 0 and done.output() == "host-1\n"

A host has its own network, pid, ipc, uts, mount and time namespace: its own name, processes, /dev/shm,
boot id and clocks. Its one interface eth0 leads to a bridge, in a namespace of its own. Needs root, the
kernel's namespaces, and the programs ip, tc, mount and sh; the network of the machine is not touched.

Each host is an *agent*, process 1 of its pid namespace, a fork of the caller. It starts processes and says
how they ended. The bridge has an agent too, in whose pid namespace all others are. That agent ends when the
caller's process ends, in whatever way, and the kernel then ends all that it has started. What remains of a
namespace goes with its last process.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWTIME = 0x20000000, 0x40000000, 0x00000080
PR_SET_PDEATHSIG = 1
BOOT_ID = "/proc/sys/kernel/random/boot_id"

LIMIT_S = 60.0  # of a host's start, and of its end
TOOLS = ("ip", "tc", "mount", "sh")
MESSAGE_BYTES = 128 << 10
# How long a full link keeps a packet; a burst holds several packets of 64 KiB.
SHAPED = "burst 512k latency 40ms"
# What the kernel or a tool says where it may not, or cannot.
REFUSALS = ("not permitted", "Permission denied", "not supported", "Unknown device type")

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(OSError):
    """This machine gives no namespace or no interface."""


class Hang(AssertionError):
    """What had to end has not ended in time."""


def unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        error = ctypes.get_errno()
        raise Refused(error, f"no namespaces ({flags:#x}): {os.strerror(error)}")


def shell(script: str, fds: Sequence[int] = ()) -> None:
    """Runs a script, which ends at its first error."""
    done = subprocess.run(
        ["sh", "-e"],
        input=script,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=fds,
    )
    if done.returncode:
        kind = Refused if any(words in done.stdout for words in REFUSALS) else OSError
        raise kind(errno.EIO, f"{done.stdout.strip()}, in:\n{script}")


def missing() -> str:
    """Why this machine cannot be several hosts, or ""."""
    if os.geteuid() != 0:
        return "needs root, for hosts of its own"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"needs {', '.join(absent)} (apt-get install iproute2 mount)"
    try:
        with Hosts(1, rate="1gbit"):
            return ""
    except Refused as error:
        return f"needs namespaces: {error.strerror}"


# ---- in an agent ----


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _keep_only(kept: Sequence[int]) -> None:
    """Closes all other descriptors, except standard ones."""
    last = 2
    for fd in sorted(kept):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))


def _agent(control: socket.socket, watched: int) -> None:
    """Serves the requests of `control`, until it is closed or the process of the pidfd `watched` ends."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Process 1 gets none of these, and what it starts may get one before its first line.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    poll = select.poll()
    for fd in (control.fileno(), watched, woken):
        poll.register(fd, select.POLLIN)
    control.send(json.dumps({"pid": os.getpid()}).encode())
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if watched in ready:
            return
        if woken in ready:
            os.read(woken, 4096)
            _reap(control)
        if control.fileno() in ready:
            text, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 8)
            if not text:
                return
            answer = _serve(json.loads(text), fds)
            for fd in fds:
                os.close(fd)
            control.send(json.dumps(answer).encode())


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        control.send(json.dumps({"ended": pid, "code": code}).encode())


def _serve(request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    try:
        if request["do"] == "start":
            pid = os.fork()
            if pid == 0:
                _start(request, fds)
            return {"pid": pid}
        os.kill(request["pid"], request["signal"])
        return {"pid": request["pid"]}
    except OSError as error:
        return {"error": error.errno, "text": str(error)}


def _start(request: dict[str, Any], fds: list[int]) -> None:
    """In the new process: becomes the command, or calls the function. Never returns."""
    status = 127
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out, err, answer, *more = fds
        null = os.open(os.devnull, os.O_RDONLY)
        for target, fd in enumerate((null, out, err)):
            os.dup2(fd, target)
        _keep_only([answer, *more])
        os.environ.update(request["env"])
        sys.stdout = open(1, "w", buffering=1, closefd=False)
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        if "argv" in request:
            os.close(answer)
            os.execvp(request["argv"][0], request["argv"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = _call(answer, more)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _call(answer: int, more: list[int]) -> int:
    """Calls the function that `answer` holds, and writes its value or its exception there."""
    with open(answer, "r+b") as file:
        function, arguments = pickle.load(file)
        said: tuple[Any, str, str] = (None, "", "")
        try:
            said = (function(*arguments, *more), "", "")
        except BaseException as error:  # KeyboardInterrupt too: the caller judges
            traceback.print_exc()
            said = (None, type(error).__name__, str(error))
        text = pickle.dumps(said)
        file.seek(0)
        file.truncate()
        file.write(text)
    return 1 if said[1] else 0


# ---- what the agents are made of ----


def _be_bridge(control: int, watched: int) -> None:
    """Process 1 of the namespaces that hold all hosts."""
    _die_with_parent()
    _keep_only([control, watched])
    unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC)
    shell(
        """
        mount --make-rprivate /
        mount -t proc proc /proc
        ip link set lo up
        ip link add br0 type bridge mcast_snooping 0
        ip link set br0 up
    """
    )
    _agent(socket.socket(fileno=control), watched)


def _fork_init(body: Callable[[], None]) -> int:
    """Process 1 of a new pid namespace runs the body."""
    unshare(CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    return pid


def _make_host(settings: dict[str, Any], control: int, watched: int) -> None:
    """Child of the bridge's agent, in its network: makes the host's process 1 and the link between both."""
    number, rate = settings["number"], settings["rate"]
    made, says_made = os.pipe()
    linked, says_linked = os.pipe()
    if os.path.exists("/proc/self/ns/time_for_children"):
        unshare(CLONE_NEWTIME)
        offset = settings["clock_s"]
        with open("/proc/self/timens_offsets", "w") as file:
            file.write(f"monotonic {offset} 0\nboottime {offset} 0\n")

    def body() -> None:
        _die_with_parent()
        unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS)
        os.write(says_made, b".")
        assert os.read(linked, 1), "the link was not made"
        shell(_host_script(settings))
        _keep_only([control, watched])
        _agent(socket.socket(fileno=control), watched)

    pid = _fork_init(body)
    os.close(says_made)
    assert os.read(made, 1), "no host was made"
    # By its file: what is started here is in the host's pid namespace, and knows no pid of this one.
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    script = f"""
        ip link add host-{number} type veth peer name eth0 netns /proc/self/fd/{network}
        ip link set host-{number} master br0 up
    """
    if rate:
        script += f"tc qdisc add dev host-{number} root tbf rate {rate} {SHAPED}\n"
    shell(script, [network])
    os.write(says_linked, b".")
    _keep_only([])
    os.waitpid(pid, 0)


def _host_script(settings: dict[str, Any]) -> str:
    number = settings["number"]
    boot_id = f"0000000{number % 10}-0000-4000-8000-{number:012}"
    # What is written under /dev/shm here stays mounted where it is bound, and is not in the host's own.
    script = f"""
        mount --make-rprivate /
        mount -t proc proc /proc
        mount -t tmpfs tmpfs /dev/shm
        printf '127.0.0.1 localhost\\n::1 localhost\\n{settings["names"]}' >/dev/shm/hosts
        echo {boot_id} >/dev/shm/boot_id
        ! test -e /etc/hosts || mount --bind /dev/shm/hosts /etc/hosts
        {"" if settings["own_boot_id"] else ":"} mount --bind /dev/shm/boot_id {BOOT_ID}
        umount /dev/shm
        mount -t tmpfs -o size={settings["shm_mb"]}m tmpfs /dev/shm
        echo host-{number} >/proc/sys/kernel/hostname
        ip link set lo up
        ip address add {settings["address"]} dev eth0
        ip link set eth0 up
    """
    if settings["rate"]:
        script += f"tc qdisc add dev eth0 root tbf rate {settings['rate']} {SHAPED}\n"
    return script


# ---- in the caller ----


class Process:
    """A process on a host. What it prints goes to memory that has no name, so nothing is left of it."""

    def __init__(
        self, agent: "_Connection", request: dict[str, Any], given: bytes, fds: Sequence[int] = ()
    ) -> None:
        self._agent = agent
        self._texts: list[bytes] = []
        self._files = [os.memfd_create(name) for name in ("stdout", "stderr", "answer")]
        os.write(self._files[2], given)
        os.lseek(self._files[2], 0, os.SEEK_SET)
        self.pid: int = agent.ask({"do": "start", **request}, [*self._files, *fds])["pid"]

    def poll(self) -> int | None:
        """How it ended, as subprocess has it (negative: a signal), or None. A host that is gone has killed it."""
        self._agent.listen(0)
        if self._agent.gone:
            return self._agent.ended.get(self.pid, -signal.SIGKILL)
        return self._agent.ended.get(self.pid)

    def wait(self, limit_s: float) -> int:
        """As poll(), but waits. Raises Hang after the limit, with what the process has printed."""
        deadline = time.monotonic() + limit_s
        while (code := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Hang(f"not done after {limit_s} s; it printed:\n{self.output()}")
            self._agent.listen(left)
        return code

    def signal(self, number: int) -> None:
        self._agent.ask({"do": "signal", "pid": self.pid, "signal": number})

    def output(self) -> str:
        """What it has printed until now: stdout, and then stderr."""
        return b"".join(self._text(number) for number in range(2)).decode(errors="replace")

    def value(self) -> Any:
        """What the function has returned. Raises AssertionError if it has raised, or has not ended."""
        value, error, text = self.said()
        assert not error, f"{error}: {text}\n{self.output()}"
        return value

    def said(self) -> tuple[Any, str, str]:
        """What the function returned; else the name of its exception, and its text."""
        if self.poll() not in (0, 1):
            return None, "Ended", f"with {self.poll()}"
        said: tuple[Any, str, str] = pickle.loads(self._text(2))
        return said

    def close(self) -> None:
        """What it has printed can still be read."""
        self._texts = [self._text(number) for number in range(3)]
        for fd in self._files:
            os.close(fd)

    def _text(self, number: int) -> bytes:
        return self._texts[number] if self._texts else _content(self._files[number])


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


class _Connection:
    """To an agent."""

    def __init__(self) -> None:
        self.mine, self.its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ended: dict[int, int] = {}
        self.gone = False
        self._answers: list[dict[str, Any]] = []

    def listen(self, limit_s: float) -> None:
        """Takes what the agent says, if anything within the limit."""
        while not self.gone and select.select([self.mine], [], [], limit_s)[0]:
            try:
                text = self.mine.recv(MESSAGE_BYTES)
            except ConnectionResetError:
                text = b""
            if not text:
                self.gone = True
                return
            said = json.loads(text)
            if "ended" in said:
                self.ended[said["ended"]] = said["code"]
            else:
                self._answers.append(said)
            limit_s = 0

    def answer(self) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while not self._answers:
            if self.gone:
                raise OSError(errno.EPIPE, "the host is gone")
            if time.monotonic() > deadline:
                raise Hang(f"a host has not answered for {LIMIT_S} s")
            self.listen(1)
        said = self._answers.pop(0)
        if "error" in said:
            raise OSError(said["error"], said["text"])
        return said

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        if self.gone or self.mine.fileno() < 0:
            raise OSError(errno.EPIPE, "the host is gone")
        try:
            socket.send_fds(self.mine, [json.dumps(request).encode()], fds)
        except BrokenPipeError:
            self.listen(0)
            raise OSError(errno.EPIPE, "the host is gone") from None
        return self.answer()

    def close(self) -> None:
        self.gone = True
        self.mine.close()
        self.its.close()


class Hosts:
    """Hosts `host-0`, `host-1`, ... They are there from `with` to its end, and never outlive this process.

    count: how many, at most 250. rate: of each link and direction, as tc has it ("1gbit"); None: no limit.
    shm_mb: MiB of each /dev/shm. ipv6: the links have no IPv4. own_boot_ids: False as in containers of one
    machine. Raises Refused if this machine does not allow it.
    """

    def __init__(
        self,
        count: int,
        rate: str | None = None,
        shm_mb: int = 64,
        ipv6: bool = False,
        own_boot_ids: bool = True,
    ) -> None:
        self.count = count
        self._settings = {"rate": rate, "shm_mb": shm_mb, "own_boot_id": own_boot_ids}
        self._ipv6 = ipv6
        self._launcher = 0
        self._bridge = _Connection()
        self._hosts = [_Connection() for _ in range(count)]
        self._makers: list[Process] = []
        self._processes: list[Process] = []

    def __enter__(self) -> "Hosts":
        watched = os.pidfd_open(os.getpid())
        try:
            self._launch(watched)
            for number in range(self.count):
                self._makers.append(self._make(number, watched))
            for number, host in enumerate(self._hosts):
                host.its.close()
                self._await(number)
        except BaseException:
            self.__exit__()
            raise
        finally:
            os.close(watched)
        return self

    def __exit__(self, *_: Any) -> None:
        for connection in (*self._hosts, self._bridge):
            connection.close()
        if self._launcher:
            os.waitpid(self._launcher, 0)
            self._launcher = 0
        for process in (*self._processes, *self._makers):
            process.close()
        self._processes, self._makers = [], []

    def address(self, host: int) -> str:
        return f"fd77::{host + 1:x}" if self._ipv6 else f"10.77.0.{host + 1}"

    def run(self, host: int, argv: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
        """Starts a program. env: variables besides those that this process had at `with`."""
        return self._start(self._hosts[host], {"argv": list(argv)}, env, b"")

    def call(
        self,
        host: int,
        function: Callable[..., Any],
        *arguments: Any,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts a process that calls the function, which pickle must find by its name. It is a fork of this
        process as it was at `with`: what was imported then is there at once."""
        return self._start(self._hosts[host], {}, env, pickle.dumps((function, arguments)))

    def stop(self, host: int) -> None:
        """Stops all that runs on the host. Its kernel still answers."""
        self._signal_all(host, signal.SIGSTOP)

    def cont(self, host: int) -> None:
        self._signal_all(host, signal.SIGCONT)

    def link_down(self, host: int) -> None:
        """No packet comes or goes, and nobody is told."""
        self._set_link(host, "down")

    def link_up(self, host: int) -> None:
        self._set_link(host, "up")

    def kill(self, host: int) -> None:
        """All processes of the host are killed, and the host is gone. Its kernel still closes their connections."""
        self._hosts[host].listen(0)
        self._hosts[host].close()
        self._makers[host].wait(LIMIT_S)

    def power_off(self, host: int) -> None:
        """As kill(), but nobody hears of it."""
        self.link_down(host)
        self.kill(host)

    def _start(
        self,
        agent: _Connection,
        request: dict[str, Any],
        env: Mapping[str, str] | None,
        given: bytes,
    ) -> Process:
        process = Process(agent, {"env": dict(env or {}), **request}, given)
        self._processes.append(process)
        return process

    def _signal_all(self, host: int, number: int) -> None:
        """The agent itself gets none: process 1 of its namespace."""
        self._hosts[host].ask({"do": "signal", "pid": -1, "signal": number})

    def _set_link(self, host: int, state: str) -> None:
        command = ["ip", "link", "set", f"host-{host}", state]
        process = self._start(self._bridge, {"argv": command}, None, b"")
        assert process.wait(LIMIT_S) == 0, process.output()

    def _launch(self, watched: int) -> None:
        """Forks the process that makes the bridge's. No process but process 1 dies with this one: so does all
        that process 1 has started."""
        complaints = os.memfd_create("complaints")
        self._launcher = os.fork()
        if self._launcher == 0:
            try:
                os.setsid()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                os.dup2(complaints, 2)
                sys.stderr = open(2, "w", buffering=1, closefd=False)
                control = self._bridge.its.fileno()
                _keep_only([control, watched])
                pid = _fork_init(lambda: _be_bridge(control, watched))
                _keep_only([])
                os.waitpid(pid, 0)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(0)
        self._bridge.its.close()
        try:
            self._bridge.answer()
        except OSError:
            raise _as_said(_content(complaints).decode()) from None
        finally:
            os.close(complaints)

    def _make(self, number: int, watched: int) -> Process:
        length = "64 nodad" if self._ipv6 else "24"
        names = "".join(f"{self.address(host)} host-{host}\\n" for host in range(self.count))
        settings = {
            **self._settings,
            "number": number,
            "names": names,
            "address": f"{self.address(number)}/{length}",
            "clock_s": 100000 * (number + 1),
        }
        given = pickle.dumps((_make_host, (settings,)))
        fds = [self._hosts[number].its.fileno(), watched]
        return Process(self._bridge, {"env": {}}, given, fds)

    def _await(self, number: int) -> None:
        try:
            self._hosts[number].answer()
        except OSError:
            self._makers[number].wait(LIMIT_S)
            raise _as_said(self._makers[number].output()) from None


def _as_said(text: str) -> OSError:
    """What an agent's process has printed before its end, as this process raises it."""
    return (Refused if "Refused" in text else OSError)(errno.EIO, text.strip())
