"""What vLLM's and SGLang's custom all-reduce have in common, as a thin cover of one AllReduce."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from lab.kernels.communicator import AllReduce

log = logging.getLogger(__name__)


class EngineAllReduce:
    """An engine's view: ask `should_custom_ar`, then call `custom_all_reduce`; what it declines goes elsewhere.

    Nothing is registered for graphs: inputs are pushed from where they lie, so any address will do.

    Attributes:
        disabled: True while every call must go elsewhere, with one rank too.
        max_size: messages above, in bytes, are declined.
        communicator: the AllReduce behind it; None with one rank, without a word.
    """

    def __init__(
        self,
        group: "dist.ProcessGroup",
        device: "int | str | torch.device",
        max_size: int | None = None,
        **options: Any,
    ):
        """Set up, by vote.

        Args:
            group: the engine's CPU group.
            device: this rank's GPU.
            max_size: largest message in bytes; AllReduce's default when None.
            options: of AllReduce.
        """
        self.group, self.device = (
            group,
            torch.device("cuda", device) if isinstance(device, int) else torch.device(device),
        )
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.communicator: AllReduce | None = None
        self._warming_up = False
        if self.world_size > 1:
            sizes = {} if max_size is None else {"max_bytes": max_size}
            self.communicator = AllReduce(group, self.device, **sizes, **options)
        self.max_size = self.communicator.max_bytes if self.communicator else 0

    @property
    def disabled(self) -> bool:
        """Whether every call must go elsewhere."""
        return self.communicator is None or self.communicator.disabled is not None

    def should_custom_ar(self, inp: torch.Tensor) -> bool:
        """Whether the kernels take this tensor: by type, shape and strides, so alike on all ranks."""
        return self.communicator is not None and self.communicator.ineligible(inp) is None

    def all_reduce(
        self, inp: torch.Tensor, *, out: torch.Tensor | None = None, registered: bool = False
    ) -> torch.Tensor:
        """The sum over all ranks, in `out` or a new tensor.

        Args:
            inp: what `should_custom_ar` takes.
            out: where to put it.
            registered: of no meaning here; engines say it while they capture.

        Raises:
            PeerLostError: an earlier call lost a peer.
        """
        return self.communicator.all_reduce(inp, out)

    def custom_all_reduce(self, inp: torch.Tensor) -> torch.Tensor | None:
        """The sum over all ranks in a new tensor, or None where the engine must go elsewhere."""
        if not self.should_custom_ar(inp):
            return None
        if self._warming_up and not self._capturing():
            return torch.empty_like(inp)  # the run ahead of a capture only asks for memory
        return self.communicator.all_reduce(inp)

    def _capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Around the engine's captures: calls that are not captured only take memory, as engines expect."""
        self._warming_up = True
        try:
            yield
        finally:
            self._warming_up = False
            if not self.disabled:
                self.register_graph_buffers()

    def register_graph_buffers(self) -> None:
        """Look for lost peers; there is nothing to register.

        Raises:
            PeerLostError: a call lost a peer.
        """
        if self.communicator is not None:
            self.communicator.check()

    def check(self) -> None:
        """Look for lost peers, also of replayed graphs: call it once a step.

        Raises:
            PeerLostError: a call lost a peer. Late peers are logged.
        """
        if self.communicator is not None:
            for wait in self.communicator.check():
                log.warning("%s", wait)

    def close(self) -> None:
        """Give everything back; a second call does nothing."""
        if self.communicator is not None:
            self.communicator.close()

    def __del__(self) -> None:
        # Engines drop the object instead of closing it. Nothing can be agreed on while the interpreter ends.
        communicator = getattr(self, "communicator", None)
        if communicator is not None and communicator.disabled is None and not sys.is_finalizing():
            try:
                communicator.close()
            except Exception as error:
                log.warning("closing the all-reduce of a dropped object failed: %s", error)
