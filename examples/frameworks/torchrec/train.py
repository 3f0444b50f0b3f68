# SPDX-License-Identifier: BSD-3-Clause
"""TorchRec on CPU: embedding tables spread over the ranks, each table whole on one of them."""

import torch
import torch.distributed as dist
import torchrec
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from compare import backend, report, steps

TABLES = [f"table{i}" for i in range(4)]
FEATURES = [f"feature{i}" for i in range(4)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = torchrec.EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=table, embedding_dim=64, num_embeddings=1000, feature_names=[feature]
                )
                for table, feature in zip(TABLES, FEATURES)
            ],
        )
        self.top = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, features):
        return self.top(self.embeddings(features).values())


dist.init_process_group(backend)
torch.manual_seed(0)
constraints = {
    t: ParameterConstraints(sharding_types=[ShardingType.TABLE_WISE.value]) for t in TABLES
}
planner = EmbeddingShardingPlanner(topology=Topology(2, "cpu"), constraints=constraints)
sharders = [EmbeddingBagCollectionSharder()]
model = Model()
plan = planner.collective_plan(model, sharders, dist.group.WORLD)
model = DistributedModelParallel(model, plan=plan, sharders=sharders, device=torch.device("cpu"))
for one in model.parameters():
    nn.init.uniform_(one.data, -0.1, 0.1)  # TorchRec's own start is random
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(1 + dist.get_rank())
for step in steps(100):
    lengths = torch.randint(1, 5, (4 * 64,), generator=data)
    values = torch.randint(1000, (int(lengths.sum()),), generator=data)
    features = KeyedJaggedTensor(keys=FEATURES, values=values, lengths=lengths)
    optimizer.zero_grad()
    loss = (model(features) - 1).square().mean()
    loss.backward()
    optimizer.step()
weights = {name: one.detach() for name, one in model.module.top.named_parameters()}
report({**weights, "loss": loss.detach()}, dist.get_rank())
dist.destroy_process_group()
