# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's CPU communicator, whose tensor parallel collectives are direct calls (_direct.py)."""

from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

import shmcoll


class Functions:
    """The functions of torch.distributed that CpuCommunicator calls, for one group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.direct = shmcoll.direct(group)

    def all_reduce(self, tensor: torch.Tensor, group: object = None) -> None:
        self.direct.all_reduce(tensor)

    def all_gather_into_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, group: object = None
    ) -> None:
        self.direct.all_gather_into(output, tensor)

    def gather(
        self, tensor: torch.Tensor, outputs: list[torch.Tensor] | None, dst: int, group: Any = None
    ) -> None:
        dist.gather(tensor, outputs, dst=dst, group=group)


class Communicator(CpuCommunicator):  # type: ignore[misc]
    """CpuCommunicator, which makes vLLM's own shared memory for a group whose name begins with tp."""

    def __init__(
        self,
        cpu_group: dist.ProcessGroup,
        device: torch.device | None = None,
        device_group: dist.ProcessGroup | None = None,
        unique_name: str = "",
        **options: Any,
    ) -> None:
        backend: Any = None
        if device_group is not None:
            backend = device_group._get_backend(torch.device("cpu"))
        ours = unique_name.startswith("tp") and backend is not None and backend.name() == "shmcoll"
        shown = f"shmcoll {unique_name}" if ours else unique_name
        super().__init__(cpu_group, device, device_group, shown, **options)
        self.unique_name = unique_name
        if ours and device_group is not None:
            self.dist_module = Functions(device_group)
