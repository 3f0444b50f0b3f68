# SPDX-License-Identifier: BSD-3-Clause
"""torchmetrics: each rank counts its own part of the data, and compute() adds the counts of all ranks."""

import torch
import torch.distributed as dist
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
)

from compare import backend, report, steps

dist.init_process_group(backend)
metrics = MetricCollection(
    [
        MulticlassAccuracy(10),
        MulticlassConfusionMatrix(10),
        MulticlassAUROC(10, thresholds=50),
    ]
)
data = torch.Generator().manual_seed(1 + dist.get_rank())
for step in steps(60):
    scores, labels = torch.randn(64, 10, generator=data), torch.randint(10, (64,), generator=data)
    metrics.update(scores.softmax(1), labels)
    found = metrics.compute()
report(found, dist.get_rank())
dist.destroy_process_group()
