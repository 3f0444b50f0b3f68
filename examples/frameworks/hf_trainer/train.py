# SPDX-License-Identifier: BSD-3-Clause
"""The Trainer of transformers on CPU: a small Llama with random weights, on random tokens.

The Trainer takes the process group that exists, so the group is made before the TrainingArguments.
"""

from time import perf_counter

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from compare import backend, report


class Clock(TrainerCallback):
    def __init__(self):
        self.times = []

    def on_step_begin(self, *args, **kwargs):
        self.begun = perf_counter()

    def on_step_end(self, *args, **kwargs):
        self.times.append(perf_counter() - self.begun)


dist.init_process_group(backend)
arguments = TrainingArguments(
    output_dir="out",
    use_cpu=True,
    max_steps=100,
    per_device_train_batch_size=2,
    learning_rate=1e-3,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    seed=0,
)
torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=1024,
    max_position_embeddings=32,
)
model = LlamaForCausalLM(config)
tokens = torch.randint(1024, (400, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]
clock = Clock()
Trainer(model, arguments, train_dataset=data, callbacks=[clock]).train()
report(model.state_dict(), dist.get_rank(), clock.times[10:])
dist.destroy_process_group()
