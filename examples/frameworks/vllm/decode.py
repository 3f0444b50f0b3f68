# SPDX-License-Identifier: BSD-3-Clause
"""vLLM on CPU with tensor parallelism over two ranks: a small Llama with random weights, greedy decoding.

Both ways run in the same processes by turns: vLLM's own shared-memory operators, and shmcoll. A step makes
one token of each prompt, with an all_reduce for each half of a layer and one gather of the logits.
"""

import json
import os
from pathlib import Path
from time import perf_counter

from compare import report

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}
TURNS, TOKENS = 8, 64


class Switch:
    """Added to vLLM's workers, for the comparison alone: a user has no need of it."""

    def use(self, name):
        from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed
        from vllm.distributed.parallel_state import get_tp_group

        communicator = get_tp_group().device_communicator
        if not hasattr(self, "ways"):
            own = _CPUSHMDistributed(communicator)
            self.ways = {"vllm": own, "shmcoll": communicator.dist_module}
            module = type(communicator).__module__
            assert module == "shmcoll._vllm_communicator", f"the plugin is not in use: {module}"
        communicator.dist_module = self.ways[name]


def decode(llm, sampling):
    """Decodes two prompts. Returns the tokens, and the time of each step after the prompts' own."""
    engine, times, tokens = llm.llm_engine, [], {}
    for number in range(2):
        engine.add_request(str(number), {"prompt_token_ids": [1, 2 + number, 3, 5, 8]}, sampling)
    while engine.has_unfinished_requests():
        begun = perf_counter()
        outputs = engine.step()
        times.append(perf_counter() - begun)
        tokens.update({one.request_id: list(one.outputs[0].token_ids) for one in outputs})
    return tokens, times[2:]


def main():
    first, second, *_ = sorted(os.sched_getaffinity(0))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"{first}|{second}"  # one CPU for each rank
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = (
        "0"  # the engine's steps are timed in this process
    )
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    os.environ["SHMCOLL_FOR_VLLM"] = "1"  # all that a user sets

    from vllm import LLM, SamplingParams

    Path("config.json").write_text(json.dumps(CONFIG))
    llm = LLM(
        ".",
        tensor_parallel_size=2,
        load_format="dummy",  # random weights, the same in every run
        skip_tokenizer_init=True,
        enforce_eager=True,  # compiling takes a minute
        max_model_len=256,
        max_num_seqs=4,
        seed=0,
        worker_extension_cls="decode.Switch",
    )
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    found = {"vllm": ([], []), "shmcoll": ([], [])}
    for turn in range(TURNS + 1):
        for name, (tokens, times) in found.items():
            llm.collective_rpc("use", args=(name,))
            new, steps = decode(llm, greedy)
            if turn > 0:  # not the first, which allocates memory
                tokens.append(new)
                times.extend(steps)
    for name, (tokens, times) in found.items():
        for rank in range(2):  # the engine has one answer for both
            report({"tokens": tokens}, rank, times, name)


if __name__ == "__main__":
    main()
