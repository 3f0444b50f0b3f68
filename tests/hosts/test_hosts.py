# SPDX-License-Identifier: BSD-3-Clause
"""Are the hosts of tests/hosts/hosts.py what other tests take them for, and does nothing stay of them?"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hosts import BOOT_ID, Hosts, Refused, missing, unshare

HERE = Path(__file__).parent
PORT = 4000


def who() -> dict[str, Any]:
    """What a process sees of its host."""
    Path("/dev/shm/mine").write_text("x")
    shm = os.statvfs("/dev/shm")
    return {
        "name": socket.gethostname(),
        "boot": Path(BOOT_ID).read_text(),
        "shm": os.listdir("/dev/shm"),
        "mib": shm.f_blocks * shm.f_frsize >> 20,
        "pids": sum(name.isdecimal() for name in os.listdir("/proc")),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "clock_s": time.monotonic(),
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES},
    }


NAMESPACES = ("net", "pid", "ipc", "uts", "mnt")


def test_a_host_has_its_own_name_processes_memory_boot_and_clock() -> None:
    with Hosts(3, shm_mb=16) as hosts:
        processes = [hosts.call(host, who) for host in range(3)]
        assert [process.wait(30) for process in processes] == [0, 0, 0]
        seen = [process.value() for process in processes]
    assert [one["name"] for one in seen] == ["host-0", "host-1", "host-2"]
    assert [one["shm"] for one in seen] == [["mine"]] * 3 and not Path("/dev/shm/mine").exists()
    assert {one["mib"] for one in seen} == {16}
    assert {one["pids"] for one in seen} == {2}  # its agent, and this process
    assert {tuple(one["interfaces"]) for one in seen} == {("eth0", "lo")}
    assert len({one["boot"] for one in seen} | {Path(BOOT_ID).read_text()}) == 4
    for name in NAMESPACES:
        own = os.readlink(f"/proc/self/ns/{name}")
        assert len({one["namespaces"][name] for one in seen} | {own}) == 4, name
    if os.path.exists("/proc/self/ns/time"):
        clocks = [one["clock_s"] for one in seen]
        assert clocks[2] - clocks[1] > 50000 < clocks[1] - clocks[0], clocks


def test_hosts_of_one_boot_have_one_boot_id() -> None:
    with Hosts(2, own_boot_ids=False) as hosts:
        for host in range(2):
            process = hosts.run(host, ["cat", BOOT_ID])
            assert process.wait(30) == 0 and process.output() == Path(BOOT_ID).read_text()


def test_a_process_has_its_variables_and_an_end() -> None:
    with Hosts(1) as hosts:
        told = hosts.run(0, ["sh", "-c", "echo $WORD; echo no >&2; exit 3"], {"WORD": "yes"})
        assert told.wait(30) == 3 and told.output() == "yes\nno\n"
        absent = hosts.run(0, ["/no/such/program"])
        assert absent.wait(30) == 127 and "No such file" in absent.output()
        sleeps = hosts.run(0, ["sleep", "100"])
        assert sleeps.poll() is None
        sleeps.signal(signal.SIGTERM)
        assert sleeps.wait(30) == -signal.SIGTERM
        raises = hosts.call(0, int, "x")
        assert raises.wait(30) == 1 and raises.said()[1] == "ValueError"
        with pytest.raises(AssertionError, match="invalid literal"):
            raises.value()
        never = hosts.run(0, ["sh", "-c", "echo here; sleep 100"])
        with pytest.raises(AssertionError, match="(?s)not done after 0.5 s.*here"):
            never.wait(0.5)


# ---- the network ----


def answer_all(address: str, family: int) -> None:
    """Sends each datagram back."""
    with socket.socket(family, socket.SOCK_DGRAM) as server:
        server.bind((address, PORT))
        print("ready", flush=True)
        while True:
            server.sendto(*server.recvfrom(100))


def ask(address: str, family: int, limit_s: float) -> bool:
    """Is there an answer within the limit?"""
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(0.05)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                client.sendto(b"x", (address, PORT))
                return client.recv(100) == b"x"
            except OSError:
                continue
    return False


def reaches(hosts: Hosts, limit_s: float, family: int = socket.AF_INET) -> bool:
    process = hosts.call(1, ask, hosts.address(0), family, limit_s)
    assert process.wait(60) == 0, process.output()
    return bool(process.value())


def test_a_link_goes_down_and_up_and_a_host_stops_and_goes_on() -> None:
    with Hosts(2) as hosts:
        hosts.call(0, answer_all, hosts.address(0), socket.AF_INET)
        assert reaches(hosts, 30)
        hosts.link_down(0)
        assert not reaches(hosts, 0.4)
        hosts.link_up(0)
        assert reaches(hosts, 30)
        hosts.stop(0)
        assert not reaches(hosts, 0.4)
        hosts.cont(0)
        assert reaches(hosts, 30)


def test_hosts_without_ipv4_reach_each_other() -> None:
    with Hosts(2, ipv6=True) as hosts:
        hosts.call(0, answer_all, hosts.address(0), socket.AF_INET6)
        assert reaches(hosts, 30, socket.AF_INET6)
        shown = hosts.run(1, ["ip", "-4", "address", "show", "eth0"])
        assert shown.wait(30) == 0 and shown.output() == ""


def take(address: str) -> None:
    with socket.create_server((address, PORT)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        with connection:
            while connection.recv(1 << 20):
                pass
            connection.send(b"x")


def give(address: str, total: int) -> float:
    """Seconds that so many bytes take."""
    with socket.create_connection((address, PORT), timeout=60) as client:
        begun = time.monotonic()
        for _ in range(total >> 16):
            client.sendall(bytes(1 << 16))
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b"x"
        return time.monotonic() - begun


@pytest.mark.parametrize("source", [0, 1])
def test_a_link_is_as_slow_as_asked(source: int) -> None:
    """4 MiB over 100 Mbit/s last 0.33 s; half a megabyte may go at once. No bound above: a machine is busy."""
    with Hosts(2, rate="100mbit") as hosts:
        server = hosts.call(1 - source, take, hosts.address(1 - source))
        while "ready" not in server.output():
            assert server.poll() is None, server.output()
        process = hosts.call(source, give, hosts.address(1 - source), 4 << 20)
        assert process.wait(60) == 0, process.output()
        assert process.value() > (4 - 1.1) * 2**20 * 8 / 100e6


def test_a_killed_host_says_goodbye_and_one_without_power_does_not() -> None:
    for power_off in (False, True):
        with Hosts(2) as hosts:
            server = hosts.call(0, take, hosts.address(0))
            while "ready" not in server.output():
                assert server.poll() is None, server.output()
            client = hosts.call(1, hold, hosts.address(0))
            while "connected" not in client.output():
                assert client.poll() is None, client.output()
            (hosts.power_off if power_off else hosts.kill)(0)
            assert server.poll() == -signal.SIGKILL
            with pytest.raises(OSError, match="gone"):
                hosts.run(0, ["true"])
            assert client.wait(30) == 0 and client.value() == ("nothing" if power_off else "closed")


def hold(address: str) -> str:
    with socket.create_connection((address, PORT), timeout=10) as client:
        print("connected", flush=True)
        client.settimeout(0.5)
        try:
            client.recv(1)
            return "closed"
        except ConnectionResetError:
            return "closed"
        except TimeoutError:
            return "nothing"


# ---- nothing stays ----


def traces() -> dict[str, set[str]]:
    """All that hosts could leave."""
    found: dict[str, set[str]] = {
        "shm": set(os.listdir("/dev/shm")),
        "interfaces": {name for _, name in socket.if_nameindex()},
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "namespaces": set(),
    }
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            found["namespaces"].update(os.readlink(entry) for entry in (process / "ns").iterdir())
    return found


def marked(word: str) -> list[str]:
    """Processes with this word in their environment or command."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


MAKES_HOSTS = """
import signal, sys, time
sys.path.insert(0, sys.argv[1])
from hosts import Hosts
def fill():
    open("/dev/shm/left", "w").write("x" * 1000)
    print("ready", flush=True)
    time.sleep(1000)
def main():
    with Hosts(3, rate="1gbit") as hosts:
        processes = [hosts.call(host, fill) for host in (0, 1, 2)]
        hosts.run(2, ["sleep", "1000.5"])
        for process in processes:
            while "ready" not in process.output():
                assert process.poll() is None, process.output()
        hosts.stop(0)
        hosts.link_down(1)
        print("ready", flush=True)
        if sys.argv[2] == "error":
            raise ValueError("planned")
        if sys.argv[2] != "end":
            time.sleep(1000)
main()
"""


@pytest.mark.parametrize("how", ["end", "error", "SIGINT", "SIGTERM", "SIGKILL"])
def test_nothing_stays_of_hosts(how: str) -> None:
    before = traces()
    command = [sys.executable, "-c", MAKES_HOSTS, str(HERE), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        if how.startswith("SIG"):
            assert len(marked("from hosts import Hosts")) > 7  # hosts, their makers, what they run
            process.send_signal(getattr(signal, how))
        process.communicate(timeout=60)
    assert process.returncode == {"end": 0, "error": 1}.get(how, -int(getattr(signal, how, 0)))
    # After SIGKILL and SIGTERM nobody waits for them: the kernel needs a moment.
    deadline = time.monotonic() + 30
    while marked("from hosts import Hosts") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert marked("from hosts import Hosts") == []
    after = traces()
    while after["namespaces"] - before["namespaces"] and time.monotonic() < deadline:
        time.sleep(0.01)  # others' tests make namespaces too
        after["namespaces"] &= traces()["namespaces"]
    assert {what: after[what] - before[what] for what in before} == {what: set() for what in before}


@pytest.mark.no_hosts
def test_a_machine_that_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing() == "needs root, for hosts of its own"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert missing().startswith("needs ip, tc, mount, sh (apt-get install")


def refuse() -> str:
    """Under a limit of no namespaces, as in a container that may make none."""
    Path("/proc/sys/user/max_net_namespaces").write_text("0")
    return missing()


def test_a_machine_that_may_not_says_so() -> None:
    with Hosts(1) as hosts:
        process = hosts.call(0, in_user_namespace)
        assert process.wait(30) == 0 and process.value().startswith("needs namespaces: "), (
            process.output(),
            process.said(),
        )


def in_user_namespace() -> str:
    """A namespace whose limit can be set without touching the machine's."""
    CLONE_NEWUSER = 0x10000000
    try:
        unshare(CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text("0 0 1")
        Path("/proc/self/gid_map").write_text("0 0 1")
    except Refused:
        return "needs namespaces: no user namespaces here"
    return refuse()
