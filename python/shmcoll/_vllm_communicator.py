# SPDX-License-Identifier: BSD-3-Clause
"""vLLM's CPU communicator, with tensor parallel collectives that call the backend directly.

torch.distributed's functions check and look up what does not change between two calls of a model; at a few
KiB that takes longer than the collective. In a compiled graph the operator shmcoll::all_reduce_ runs instead.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

_OPERATORS: Any = torch.ops.shmcoll


class Direct:
    """The functions of torch.distributed that CpuCommunicator calls, for one group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.backend: Any = group._get_backend(torch.device("cpu"))
        self.name: str = group.group_name
        self.sum, self.gathered = AllreduceOptions(), AllgatherOptions()
        for options in (self.sum, self.gathered):
            options.asyncOp = False  # the call returns when it is done

    def all_reduce(self, tensor: torch.Tensor, group: object = None) -> None:
        if torch.compiler.is_compiling():
            _OPERATORS.all_reduce_(tensor, self.name)
        else:
            self.backend.allreduce([tensor], self.sum)

    def all_gather_into_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, group: Any = None
    ) -> None:
        if torch.compiler.is_compiling():
            dist.all_gather_into_tensor(output, tensor, group=group)
        else:
            self.backend._allgather_base(output, tensor, self.gathered)

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
            self.dist_module = Direct(device_group)
