"""The class that stands for SGLang's custom all-reduce. README.md beside this file has the line to change."""

import torch
import torch.distributed as dist

from lab.kernels.engines.engine import EngineAllReduce


class CustomAllreduce(EngineAllReduce):
    """`sglang.srt.distributed.device_communicators`: CustomAllreduce and CustomAllReduceV2, by their interface."""

    def __init__(
        self,
        group: "dist.ProcessGroup",
        device: "int | str | torch.device",
        max_size: int | None = None,
        max_pull_size: int | None = None,
        max_push_size: int | None = None,
        max_pull_blocks: int | None = None,
        max_push_blocks: int | None = None,
    ):
        """As SGLang calls it: the larger of the sizes is `max_size`; more blocks than needed are not taken."""
        sizes = [size for size in (max_size, max_pull_size, max_push_size) if size is not None]
        blocks = [count for count in (max_pull_blocks, max_push_blocks) if count is not None]
        options = {"blocks": max(blocks)} if blocks else {}
        super().__init__(group, device, max(sizes) if sizes else None, **options)

    def custom_all_reduce(self, inp: torch.Tensor, override_algo: object = None) -> torch.Tensor | None:
        """As the base. `override_algo` asks for one order of summation, and there is only one here: rank order."""
        return super().custom_all_reduce(inp)
