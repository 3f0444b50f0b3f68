# SPDX-License-Identifier: BSD-3-Clause
"""The Trainer of Lightning on CPU, with three strategies: DDP, FSDP2 and tensor parallel."""

import sys
import warnings
from time import perf_counter

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from compare import backend, report

warnings.filterwarnings("ignore")
kind = sys.argv[1]  # ddp, fsdp2 or tp
STRATEGIES = {
    "ddp": lambda: DDPStrategy(process_group_backend=backend, gradient_as_bucket_view=True),
    "fsdp2": lambda: ModelParallelStrategy(
        data_parallel_size=2, tensor_parallel_size=1, process_group_backend=backend
    ),
    "tp": lambda: ModelParallelStrategy(
        data_parallel_size=1, tensor_parallel_size=2, process_group_backend=backend
    ),
}


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        self.times = []

    def configure_model(self):
        if kind == "tp":
            plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
            parallelize_module(self.layers, self.device_mesh["tensor_parallel"], plan)
        if kind == "fsdp2":
            mesh = self.device_mesh["data_parallel"]
            for layer in (self.layers[0], self.layers[2]):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.layers, mesh=mesh)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)

    def training_step(self, batch, number):
        x, y = batch
        return (self.layers(x) - y).square().mean()

    def on_train_batch_start(self, *args):
        self.begun = perf_counter()

    def on_train_batch_end(self, *args):
        self.times.append(perf_counter() - self.begun)


lightning.seed_everything(0, verbose=False)
model = Model()
x = torch.randn(4800, 256)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=STRATEGIES[kind](),
    max_steps=150,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
weights = {
    name: value.to_local() if isinstance(value, DTensor) else value
    for name, value in model.state_dict().items()
}
report(weights, trainer.global_rank, model.times[10:])
