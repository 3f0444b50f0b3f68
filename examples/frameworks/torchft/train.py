# SPDX-License-Identifier: BSD-3-Clause
"""torchft on CPU: two replicas of a model. One is killed in the middle, starts again, and gets the state
of the other one, which has waited for it.

The data of a step depends on its number alone, and both replicas take part in each. So the result is that
of a run in which nobody dies.
"""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn

from compare import backend, report

STEPS, KILLED_BEFORE = 120, 40
WAIT = timedelta(seconds=300)  # for the other replica: its start may take long on a busy machine


def main():
    """Starts the replicas, and the killed one anew."""
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer("[::]:0", min_replicas=2, heartbeat_timeout_ms=1000)
    os.environ["TORCHFT_LIGHTHOUSE"] = lighthouse.address()
    start = [sys.executable, __file__]
    replicas = [subprocess.Popen([*start, str(number), "0"]) for number in range(2)]
    assert replicas[1].wait() == -signal.SIGKILL, "this replica should have been killed"
    replicas[1] = subprocess.Popen([*start, "1", "1"])
    codes = [replica.wait() for replica in replicas]
    lighthouse.shutdown()
    sys.exit(max(map(abs, codes)))


def train(number, life):
    if backend == "shmcoll":
        import shmcoll

        shmcoll.use_for_gloo()  # before torchft is loaded; SHMCOLL_FOR_GLOO=1 needs no line
    import torchft

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=WAIT),
        min_replica_size=2,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"replica {number}",
        store_addr="localhost",
        store_port=store.port,
        rank=0,
        world_size=1,
        use_async_quorum=False,  # a replica that comes back takes part at once
        timeout=WAIT,
        quorum_timeout=WAIT,
        connect_timeout=WAIT,
    )
    replicated = torchft.DistributedDataParallel(manager, model)
    together = torchft.Optimizer(manager, optimizer)
    times = []
    while manager.current_step() < STEPS:
        begun = perf_counter()
        together.zero_grad()  # waits until both replicas are there; a new one gets the other's state
        step = manager.current_step()
        if step == KILLED_BEFORE and number == 1 and life == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(16, 256, generator=torch.Generator().manual_seed(2 * step + number))
        (replicated(x) - x).square().mean().backward()
        together.step()
        times.append(perf_counter() - begun)
    assert life == number, "replica 1 has been killed, and replica 0 has not"
    report({**model.state_dict(), "steps": manager.current_step()}, number, times[10:])
    manager.shutdown(wait=False)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        train(int(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
