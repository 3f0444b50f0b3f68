# SPDX-License-Identifier: BSD-3-Clause
"""A team whose ranks mpirun has started: MPI next to the backends of torch, through mpi4py."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

from shmcoll.bench.run import mpirun, rendezvous, started_by, startline, torch_team
from shmcoll.bench.run.torch_team import Refused, Team, TeamError

_GOODBYE_S = 3.0  # mpirun ends its ranks and removes what they have in /dev/shm
_DEBIAN_LIBRARIES = Path("/usr/lib")


class MpiTeam(Team):
    """A team that talks to its ranks as Team does. Only their start and their end differ."""

    _listener: socket.socket
    _mpirun: subprocess.Popen[bytes]

    def start(self) -> None:
        """Raises Refused if there is nothing to start."""
        ranks = self._settings.nproc
        if importlib.util.find_spec("mpi4py") is None:
            raise Refused("mpi4py is not installed: pip install shmcoll[mpi]")
        command = mpirun.command(self.backend, ranks, bind=False)
        if command is None:
            names = " nor ".join(mpirun.MPIS[self.backend].launchers)
            raise Refused(f"no mpirun of {mpirun.MPIS[self.backend].vendor}: neither {names}")
        self._dir.mkdir()
        self._listener = rendezvous.open_at(self._dir)
        with self._log(0).open("wb") as log:
            self._mpirun = subprocess.Popen(
                [*command, sys.executable, "-m", "shmcoll.bench.run.rank", str(self._dir)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(self._mpirun)

    def join(self) -> None:
        ranks, process = self._settings.nproc, self._mpirun
        timeout_s = torch_team.START_TIMEOUT_S
        with self._listener:
            self._channels = rendezvous.gather(
                self._listener, ranks, timeout_s, lambda: process.poll() is None
            )
        if len(self._channels) < ranks:
            if process.poll() is None:
                raise TeamError(f"only {len(self._channels)} of {ranks} ranks have started")
            raise TeamError(self._death_of(0))
        line_fd = startline.create(ranks)
        try:
            for rank, channel in enumerate(self._channels):
                rendezvous.send_off(channel, self.job(rank, line_fd), line_fd)
        finally:
            os.close(line_fd)
        self._send({"do": "init"}, self._all)
        super().join()

    def _environment(self) -> dict[str, str]:
        env = started_by.without(torch_team.environment())
        env["GLIBC_TUNABLES"] = mpirun.TUNABLES
        # A wheel of mpi4py has a module for each, linked with the names that upstream has given.
        env["MPI4PY_MPIABI"] = mpirun.MPIS[self.backend].abi
        if self.backend == "mpich":
            # Its shared-memory way (4.0.2) crashes where roots that reduce in place take turns.
            env.setdefault("MPIR_CVAR_REDUCE_DEVICE_COLLECTIVE", "0")
            for path in sorted(_DEBIAN_LIBRARIES.glob("*/libmpich.so.12"))[:1]:
                (self._dir / "libmpi.so.12").symlink_to(path)
            paths = [str(self._dir), env.get("LD_LIBRARY_PATH", "")]
            env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        return env

    def _kill(self, process: torch_team.Process) -> None:
        process.terminate()
        try:
            process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def _process(self, rank: int) -> torch_team.Process:
        return self._mpirun

    def _log(self, rank: int) -> Path:
        return self._dir / "mpirun.log"
