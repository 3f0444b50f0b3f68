# SPDX-License-Identifier: BSD-3-Clause
"""Goes on with the ranks of a group that are left.

docs/internals/protocol/survivors.md says how they agree about who that is, and what happens if a rank dies meanwhile.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from shmcoll import _backend, _glue, _hosts
from shmcoll._log import say
from shmcoll._options import HOSTS_KEYS

_LOST_HOST_S = 10.0  # for a rank to come from a host whose connection has ended
_PEER_DEAD = 11  # enum shc_status of src/shm/shmcoll.h
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02


def _facts(backend: Any) -> dict[str, str]:
    return dict(line.split("=", 1) for line in _glue.info(backend).splitlines())


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _a_rank_has_died() -> bool:
    """Is that why making a group has just failed? Then it has failed on all ranks."""
    return bool(_glue.glue.shc_error_status() == _PEER_DEAD)


def _ranks_text(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks)) or 'none'}"


class _Patience:
    """Of one call: when it gives up, and when it says whom it waits for."""

    def __init__(self, rank: int, limit: datetime.timedelta) -> None:
        self.rank = rank  # in the job
        self.begun = time.monotonic()
        self.limit_s = limit.total_seconds()
        self.late_s = (_hosts.late_ms() or 5000) / 1000
        self.pause_s = _FIRST_PAUSE_S

    def left(self) -> datetime.timedelta:
        """The rest of the limit, for a group that is made meanwhile; 0: no limit."""
        if self.limit_s == 0:
            return datetime.timedelta(0)
        rest_s = self.limit_s - (time.monotonic() - self.begun)
        return datetime.timedelta(seconds=max(rest_s, 0.001))

    def wait(self, missing: Any) -> None:
        """One pause. `missing`: tells the ranks that are waited for.

        Raises:
            torch.distributed.DistBackendError: the limit is over.
        """
        waited_s = time.monotonic() - self.begun
        over = 0 < self.limit_s <= waited_s
        if over or waited_s >= self.late_s:
            whom = _ranks_text(missing()) + ": alive, and has not called shrink_group"
            if over:
                raise dist.DistBackendError(
                    f"shmcoll: shrink_group: rank {self.rank}: Timed out after {waited_s:.1f} s, waiting for {whom}"
                )
            say("warn", f"rank {self.rank} has waited {waited_s:.1f} s in shrink_group for {whom}")
            self.late_s *= 2
        time.sleep(self.pause_s)
        self.pause_s = min(1.5 * self.pause_s, _LONGEST_PAUSE_S)


class _Survivors:
    """The ranks of a group, which find out together who of them is left."""

    def __init__(self, backend: Any, store: Any, patience: _Patience) -> None:
        facts = _facts(backend)
        self.backend = backend
        self.rank, self.size = int(facts["rank"]), int(facts["world_size"])
        self.numbers = _numbers(facts["members"])  # in the job
        # A later group may have the same store: its keys are others.
        self.store = PrefixStore(f"shmcoll/shrink/{facts['id']}", store)
        self.patience = patience
        self.over_hosts = int(facts.get("hosts", "1")) > 1
        self.round = 0
        self.seen = ""  # what this rank has told of the others
        self.unsure_s: dict[int, float] = {}  # since when

    def _key(self, what: str) -> str:
        return f"{self.round}/{what}"

    def _have(self, *keys: str) -> bool:
        return bool(self.store.check([self._key(key) for key in keys]))

    def _gone(self) -> set[int]:
        """The ranks that have died or left. Over several hosts each rank tells the others what it sees of its own."""
        facts = _facts(self.backend)
        gone = set(_numbers(facts["gone"]))
        if not self.over_hosts:
            return gone
        unsure = set(_numbers(facts["unsure"]))
        seen = f"{facts['gone']};{facts['unsure']}"
        if seen != self.seen:
            self.store.set(self._key(f"seen/{self.rank}"), seen)
            self.seen = seen
        for rank in range(self.size):
            if rank != self.rank and self._have(f"seen/{rank}"):
                theirs, _, lost = self.store.get(self._key(f"seen/{rank}")).partition(b";")
                gone.update(self._ranks(theirs))
                unsure.update(self._ranks(lost))
        return gone | self._given_up(unsure - gone)

    def _given_up(self, unsure: set[int]) -> set[int]:
        """A host that is lost: its ranks, unless one has come in time, which knows of the others."""
        now = time.monotonic()
        for rank in unsure:
            self.unsure_s.setdefault(rank, now)
        late = {rank for rank in unsure if now - self.unsure_s[rank] >= _LOST_HOST_S}
        return set() if any(self._have(f"came/{rank}") for rank in unsure) else late

    def _ranks(self, value: bytes) -> list[int]:
        """What a rank has written into the store."""
        text = value.decode(errors="replace")
        try:
            ranks = _numbers(text)
        except ValueError:
            ranks = [-1]
        if ranks != sorted({*ranks} & {*range(self.size)}):
            raise dist.DistBackendError(f"shmcoll: shrink_group: the store holds {text!r} as ranks")
        return ranks

    def _decision(self) -> list[int] | None:
        """Who is left, if that has been decided in this round."""
        if not self._have("left"):
            return None
        left = self._ranks(self.store.get(self._key("left")))
        if self.rank not in left:
            names = _ranks_text([self.numbers[rank] for rank in left])
            raise dist.DistBackendError(
                f"shmcoll: shrink_group: rank {self.numbers[self.rank]}: {names} went on without it"
            )
        return left

    def _begin(self) -> None:
        """Enters the first round that has not failed."""
        while self._have("failed"):
            self.round += 1
        self.seen = ""
        self.store.set(self._key(f"came/{self.rank}"), "1")

    def fail(self) -> None:
        """The group of this round could not be made, because one of its ranks has died."""
        self.store.set(self._key("failed"), "1")

    def agree(self) -> list[int]:
        """Returns the ranks that are left, the same on all of them. Waits for those that are alive."""
        try:
            return self._agree()
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            raise dist.DistBackendError(
                "shmcoll: shrink_group: the store does not answer, and must outlive the ranks that die: "
                + str(error).splitlines()[0]
            ) from error

    def _agree(self) -> list[int]:
        self._begin()
        while True:
            left = self._decision()
            if left is not None and not self._have("failed"):
                return left
            if self._have("failed"):
                self._begin()
                continue
            gone = self._gone()
            alive = [rank for rank in range(self.size) if rank not in gone]
            if self._have(*(f"came/{rank}" for rank in alive)):
                # The first proposal of a round wins.
                self.store.compare_set(self._key("left"), "", ",".join(map(str, alive)))
                continue
            self.patience.wait(
                lambda alive=alive: [
                    self.numbers[rank] for rank in alive if not self._have(f"came/{rank}")
                ]
            )

    def _hosts_options(self) -> dict[str, Any]:
        options = getattr(self.backend, "options", None)
        return {key: getattr(options, key) for key in HOSTS_KEYS} if options else {}

    def meet(self, left: list[int], name: str) -> Any:
        """Makes a group of them for the time until the new one is there: it sees a rank die that has not come."""
        options: Any = _glue.Options(self.patience.left(), **self._hosts_options())
        options.group_name = f"{name}, {_ranks_text([self.numbers[rank] for rank in left])}"
        options.global_ranks_in_group = [self.numbers[rank] for rank in left]
        store = PrefixStore(self._key("meet"), self.store)
        return _backend.make_anywhere(store, left.index(self.rank), len(left), options)


def _abort_others(pg: Any) -> None:
    """Ranks that wait in other groups come, too. These groups end with the default group."""
    for other in list(dist.distributed_c10d._world.pg_map):
        if other is not pg:
            with contextlib.suppress(ValueError):  # nothing of shmcoll is in it
                _backend.find_backend("shrink_group", other)[1].abort()


def _config(pg: Any) -> str:
    """The backends of a group, as it was asked for: a group of one name has a default backend."""
    config = dist.get_backend_config(pg)
    name = config.partition(",")[0].rpartition(":")[2]
    plain = str(dist.distributed_c10d.BackendConfig(dist.Backend(name)))
    return name if config == plain else config


def _pg_options(backend: Any, config: str) -> Any:
    """The group's, if they can be had, and no other backend would get them."""
    names = {part.rpartition(":")[2] for part in config.split(",")}
    return getattr(backend, "options", None) if names == {"shmcoll"} else None


def _new_default_group(pg: Any, backend: Any, patience: _Patience, pg_options: Any) -> Any:
    facts, config, device = _facts(backend), _config(pg), getattr(pg, "bound_device_id", None)
    timeout = datetime.timedelta(seconds=float(facts["timeout_s"]))
    options = pg_options or _pg_options(backend, config)
    survivors = _Survivors(backend, pg.get_group_store(), patience)
    _abort_others(pg)
    while True:
        left = survivors.agree()
        try:
            between = survivors.meet(left, facts["desc"])
        except RuntimeError:
            if not _a_rank_has_died():
                raise
            survivors.fail()
            continue
        if dist.is_initialized():
            dist.destroy_process_group()
        numbers = [survivors.numbers[rank] for rank in left]
        store = PrefixStore(f"{survivors.round}/group", survivors.store)
        try:
            with _backend.numbering(numbers):
                dist.init_process_group(
                    config,
                    store=store,
                    rank=left.index(survivors.rank),
                    world_size=len(left),
                    timeout=timeout,
                    pg_options=options,
                    device_id=device,
                )
        except RuntimeError:
            if not _a_rank_has_died():
                raise
            survivors = _Survivors(between, store, patience)
            continue
        between.shutdown()
        return dist.group.WORLD


def _new_subgroup(pg: Any, backend: Any, patience: _Patience, pg_options: Any) -> Any:
    facts, config = _facts(backend), _config(pg)
    survivors = _Survivors(backend, pg.get_group_store(), patience)
    while True:
        left = survivors.agree()
        try:
            made = dist.new_group(
                [dist.get_global_rank(pg, rank) for rank in left],
                timeout=datetime.timedelta(seconds=float(facts["timeout_s"])),
                backend=config,
                pg_options=pg_options or _pg_options(backend, config),
                use_local_synchronization=True,
                group_desc=facts["desc"],
            )
        except RuntimeError:
            if not _a_rank_has_died():
                raise
            survivors.fail()
            continue
        dist.destroy_process_group(pg)
        return made


def shrink_group(
    group: dist.ProcessGroup | None = None,
    timeout: datetime.timedelta | None = None,
    pg_options: Any = None,
) -> dist.ProcessGroup:
    """Replaces a group that has lost ranks by one of the ranks that are left.

    Every rank that is alive calls it, as after an error that tells of a death. The ranks find out
    together who is left. A rank that has died or left the group does not count, also one that dies
    meanwhile. A rank that is alive is waited for, and named after 5 s and when the time is over.

    The old group ends. With the default group all groups of this process end, and calls on them raise.
    In the new default group ranks are counted anew: ``dist.get_rank()`` may be another number. Error texts,
    log lines and tools keep the numbers with which the job began.

    Args:
        group: the process group; the default group if None.
        timeout: how long to wait for ranks that are alive; the time-out of the group if None.
        pg_options: of the new group; those of the old one if None. (Without ``shmcoll._C`` a group does
            not tell its options; then those of a group without any.)

    Returns:
        The new group; if the default group was replaced, the new default group. It has the old one's
        backends and time-out.

    Raises:
        TypeError: ``group`` is not a process group, or ``timeout`` is not a ``datetime.timedelta``.
        ValueError: this process is not in the group, the group has no shmcoll backend or was made with
            enable_reconfigure, or there is no default group.
        torch.distributed.DistBackendError: a rank that is alive did not come within the time, or the
            others went on without this one. The group is still there, and the call may be made again.

    The group's store must have outlived the ranks that died: a ``FileStore``, or a ``TCPStore`` that another
    process serves.

    Example:
        >>> try:
        ...     dist.all_reduce(t)
        ... except dist.DistBackendError:
        ...     shmcoll.shrink_group()
        ...     model = DistributedDataParallel(model.module)
    """
    if timeout is not None:
        _backend._check_type("shrink_group: timeout", timeout, datetime.timedelta)
    pg, backend = _backend.find_backend("shrink_group", group)
    if _backend.is_reconfigurable(pg):
        raise ValueError(
            "shmcoll: shrink_group: the group was made with enable_reconfigure=True; call "
            "torch.distributed._reconfigure with the handles of the ranks that are left"
        )
    facts = _facts(backend)
    limit = datetime.timedelta(seconds=float(facts["timeout_s"])) if timeout is None else timeout
    patience = _Patience(int(facts["global_rank"]), limit)
    make = _new_default_group if pg is dist.group.WORLD else _new_subgroup
    made: dist.ProcessGroup = make(pg, backend, patience, pg_options)
    return made
