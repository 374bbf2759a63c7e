"""AllReduce: the kernels behind a torch.distributed group, set up by vote, with a loud fallback."""

import hashlib
import json
import logging
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lab.errors import LabError, UnknownNameError
from lab.kernels import self_test
from lab.kernels.build import ALL_REDUCE, ROUNDINGS
from lab.kernels.rank import ITEMSIZE, Rank
from lab.kernels.staging import MAX_BLOCKS, Layout, Wait
from lab.kernels.strategy import Plan, Room, Strategy, default, fixed

log = logging.getLogger(__name__)

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_communicators: "weakref.WeakValueDictionary[int, AllReduce]" = weakref.WeakValueDictionary()


class PeerLostError(LabError):
    """A kernel waited for a peer beyond its bound; the results of that call and of later ones are not valid.

    Attributes:
        waits: the records, as decoded from the kernels' reports.
    """

    def __init__(self, waits: Sequence[Wait]):
        super().__init__(
            "a peer was lost in an all-reduce\n" + "\n".join(str(wait) for wait in waits),
            hint="find out why the peer stopped; then call reset() on every rank, or close the communicator",
        )
        self.waits = tuple(waits)


class AllReduce:
    """All-reduce over the GPUs of one host, one process per rank.

    Every method but `check` and `ineligible` is a collective: call it on all ranks, in the same order. Where the
    kernels cannot be used, `all_reduce` uses torch.distributed on `fallback` and the log says why.

    Calls of one communicator must run one after the other. Eager calls see to that themselves; replays of graphs
    that hold calls, on more than one stream, are for the caller to order.

    Attributes:
        disabled: why every call falls back, or None while the kernels are in use.
        strategy: the table of switch points in use.
        rank, world: of the group.
    """

    def __init__(
        self,
        group: "dist.ProcessGroup",
        device: "torch.device | int",
        *,
        max_bytes: int = 32 << 20,
        algorithm: "str | Strategy" = "auto",
        fallback: "dist.ProcessGroup | None" = None,
        timeout: float = 5.0,
        grace: float = 5.0,
        rounding: str = "RNE",
        blocks: int | None = None,
        test: bool = True,
        marker: Path | None = None,
        cache: Path | None = None,
    ):
        """Set up, by vote: a step that fails on one rank disables the kernels on all of them.

        Args:
            group: a group on CPU tensors (gloo), for agreement only.
            device: this rank's GPU.
            max_bytes: largest message for the kernels, in bytes.
            algorithm: "auto", a kernel's name, or a Strategy.
            fallback: group for messages that the kernels do not take (RCCL/NCCL); the default group when None.
            timeout: seconds after which a wait for a peer counts as late.
            grace: further seconds after which the peer counts as lost and the call is given up.
            rounding: of 16-bit results, one of build.ROUNDINGS.
            blocks: at most so many blocks in a launch, 1 to MAX_BLOCKS; launches then wait for their predecessors.
                None: where every rank has a GPU to itself, as many as it holds, and launches overlap (see Rank's
                overlap); where ranks share one, what `Room.of_shared_gpu` gives.
            test: run the self-test before the first use.
            marker: file to write, with the reason, when a peer is lost; `reset` takes it away.
            cache: folder of compiled files.

        Raises:
            LabError: an argument is out of range. What fails on a machine is voted on, not raised.
        """
        self.group, self.fallback, self.marker = group, fallback, marker
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if self.device.type == "cuda" and self.device.index is None and torch.cuda.is_available():
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.disabled: str | None = None
        self._rank: Rank | None = None
        self._stream: torch.cuda.Stream | None = None
        self._said: set[str] = set()
        self._waits: Sequence[Wait] = ()
        self.strategy: Strategy | None = None
        if isinstance(algorithm, str) and algorithm not in ("auto", *ALL_REDUCE):
            raise UnknownNameError("algorithm", algorithm, ["auto", *ALL_REDUCE])
        if rounding not in ROUNDINGS:
            raise UnknownNameError("rounding mode", rounding, ROUNDINGS)
        if blocks is not None and not 1 <= blocks <= MAX_BLOCKS:
            raise LabError("blocks is out of range", value=blocks, hint=f"use 1 to {MAX_BLOCKS}, or None")
        if timeout <= 0 or grace < 0:
            raise LabError("a wait needs a bound", value=(timeout, grace), hint="timeout above 0, grace 0 or above")
        self.id = id(self)
        _communicators[self.id] = self

        def plan() -> str:
            if not 2 <= self.world <= 8:
                raise LabError("world is out of range", value=self.world, hint="use 2 to 8 ranks")
            self.vendor, self.architecture = _describe(self.device)
            if isinstance(algorithm, Strategy):
                self.strategy = algorithm
            else:
                named = default(self.architecture, self.world) if algorithm == "auto" else fixed(algorithm)
                self.strategy = named
            small = max_bytes if self.world == 2 else min(max_bytes, 1 << 20)
            self.layout = Layout(self.world, max_bytes, one_shot_bytes=small, packet_bytes=small)
            agreed = json.dumps([asdict(self.strategy), asdict(self.layout), blocks, self.architecture, rounding])
            return hashlib.sha256(agreed.encode()).hexdigest()

        def allocate() -> Any:
            sharing = ranks_on_a_gpu(places)
            self._rank = Rank(
                self.vendor, self.architecture, self.device.index, self.rank, self.layout, timeout=timeout,
                grace=grace, overlap=blocks is None and sharing == 1, rounding=rounding, cache=cache,
            )  # fmt: skip
            sms = torch.cuda.get_device_properties(self.device).multi_processor_count
            if blocks is not None:
                self.room = Room(blocks, blocks * 512)
            elif sharing > 1:
                self.room = Room.of_shared_gpu(sms, sharing)
            else:
                self.room = Room(MAX_BLOCKS, sms * self._rank.blocks_per_multiprocessor() * 512)
            return self._rank.share(), self.room

        digests = self._step("plan", plan)
        if not self.disabled and len(set(digests)) > 1:
            self._disable("plan", "ranks disagree on strategy, sizes, architecture or rounding")
        places = self._step("place", lambda: _place(self.device))
        if len({host for host, _ in places}) > 1:
            self._disable("place", "ranks are on several hosts")
        shared = self._step("allocate", allocate)
        if not self.disabled and len({held for _, held in shared}) > 1:
            self._disable("allocate", "the GPUs hold different numbers of threads at a time")
        self._step("connect", lambda: self._rank.connect([where for where, _ in shared]))
        if test:
            self._step("self-test", self._self_test)

    def _step(self, name: str, work: Callable[[], Any]) -> list[Any]:
        """Do a set-up step, then vote. Returns every rank's result; disables all ranks when one failed."""
        if self.disabled:
            return []
        try:
            mine, failure = work(), None
        except Exception as error:  # whatever it is, the peers must hear of it
            mine, failure = None, f"rank {self.rank}: {type(error).__name__}: {error}"
        votes: list[Any] = [None] * self.world
        dist.all_gather_object(votes, (mine, failure), group=self.group)
        failures = [failure for _, failure in votes if failure]
        if failures:
            self._disable(name, "; ".join(failures))
        return [result for result, _ in votes]

    def _disable(self, step: str, reason: str) -> None:
        self.disabled = f"{step}: {reason}"
        text = f"lab all-reduce is off on all {self.world} ranks, torch.distributed takes over. {self.disabled}"
        log.warning(text)
        if self.rank == 0:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        self._release()

    def _self_test(self) -> int:
        def plans(nbytes: int) -> list[Plan]:
            tried = [self.strategy, *(fixed(name, threads=256) for name in ALL_REDUCE)]
            found = [strategy.plan(nbytes, self.layout, self.room) for strategy in tried]
            return [plan for plan in found if plan]

        limit = min(self.layout.max_bytes, 1 << 20)
        barrier = lambda: dist.barrier(group=self.group)  # noqa: E731
        outcome = self_test.run([self._rank], plans, max_bytes=limit, rounds=self.world + 1, barrier=barrier)
        if outcome.failures:
            raise LabError("the self-test failed\n" + "\n".join(outcome.failures))
        return outcome.calls

    def ineligible(self, tensor: "torch.Tensor") -> str | None:
        """Why `tensor` would fall back, or None. Depends on type, shape and strides only, so agrees on all ranks."""
        if self.disabled:
            return self.disabled
        if tensor.device != self.device:
            return f"tensor on {tensor.device}, communicator on {self.device}"
        if tensor.dtype not in DTYPES:
            return f"type {tensor.dtype} is not one of float32, float16, bfloat16"
        if tensor.numel() == 0:
            return "no elements"
        if not is_flat(tensor):
            return "its elements overlap or leave gaps in memory"
        nbytes = tensor.numel() * tensor.element_size()
        if self.strategy.plan(nbytes, self.layout, self.room) is None:
            return f"{nbytes} bytes are more than the strategy and the workspace hold"
        return None

    def all_reduce(self, tensor: "torch.Tensor", out: "torch.Tensor | None" = None) -> "torch.Tensor":
        """Sum over all ranks, on the current stream; nothing is waited for.

        Args:
            tensor: the same type, shape and strides on every rank. Elements are summed by their place in memory.
            out: where to put the sum: `tensor` itself or a tensor like it that shares no memory; new when None.

        Returns:
            `out`, or a new tensor with `tensor`'s type and strides: fp32 sums in rank order, rounded once, the same
            bits on every rank and for every algorithm.

        Raises:
            LabError: `out` does not fit. PeerLostError: an earlier call lost a peer.
        """
        if out is None:
            out = torch.empty_like(tensor, memory_format=torch.preserve_format)
        if out.dtype != tensor.dtype or out.shape != tensor.shape or out.stride() != tensor.stride():
            raise LabError("out must have the type, shape and strides of the tensor", value=tuple(out.shape))
        reason = self.ineligible(tensor)
        if reason:
            return self._fall_back(tensor, out, reason)
        self._raise_lost()
        count = tensor.numel()
        plan = self.strategy.plan(count * tensor.element_size(), self.layout, self.room)
        stream = torch.cuda.current_stream(self.device)
        # Calls of one communicator follow each other, whatever streams they come on.
        if self._stream is not None and self._stream != stream and not torch.cuda.is_current_stream_capturing():
            stream.wait_stream(self._stream)
        self._stream = stream
        with torch.cuda.device(self.device):
            self._rank.launch(plan, DTYPES[tensor.dtype], tensor.data_ptr(), out.data_ptr(), count, stream.cuda_stream)
        return out

    def _fall_back(self, tensor: "torch.Tensor", out: "torch.Tensor", reason: str) -> "torch.Tensor":
        if reason not in self._said:
            self._said.add(reason)
            log.warning("all-reduce of %s %s by torch.distributed: %s", tensor.dtype, tuple(tensor.shape), reason)
        if out.data_ptr() != tensor.data_ptr():
            out.copy_(tensor)
        if out.is_contiguous():
            dist.all_reduce(out, group=self.fallback)
        else:
            dense = out.contiguous()
            dist.all_reduce(dense, group=self.fallback)
            out.copy_(dense)
        return out

    def check(self) -> tuple[Wait, ...]:
        """Look at the kernels' reports without a device synchronisation; returns late waits, if any.

        Raises:
            PeerLostError: a wait was given up. The marker file has been written by then.
        """
        self._raise_lost()
        return tuple(wait for wait in self._rank.waits() if wait.kind == "late") if self._rank else ()

    def _raise_lost(self) -> None:
        if self._rank is None:
            return
        lost = [wait for wait in self._rank.waits() if wait.kind == "lost"]
        if lost:
            error = PeerLostError(lost)
            if self.marker is not None:
                self.marker.parent.mkdir(parents=True, exist_ok=True)
                self.marker.write_text(f"rank {self.rank} of {self.world}\n{error}\n")
            raise error

    def reset(self) -> None:
        """Start afresh after a loss, by agreement: every rank waits for its kernels, then all empty their state."""

        def quiet() -> int:
            torch.cuda.synchronize(self.device)
            return self._rank.epoch()

        epochs = self._step("reset", quiet)
        if not self.disabled:
            self._step("reset", lambda: self._rank.reset(max(epochs)))
        if not self.disabled and self.marker is not None:
            self.marker.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the memory back, once every rank's kernels have ended. A second call does nothing."""
        if self._rank is None:
            return
        torch.cuda.synchronize(self.device)
        dist.barrier(group=self.group)
        self._release()
        self.disabled = "closed"

    def _release(self) -> None:
        if self._rank is not None:
            self._rank.close()
            self._rank = None

    def __enter__(self) -> "AllReduce":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_flat(tensor: "torch.Tensor") -> bool:
    """Whether the elements fill one span of memory, each place once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def ranks_on_a_gpu(places: Sequence[tuple[str, str]]) -> int:
    """How many ranks the most crowded GPU has, given every rank's (host, GPU)."""
    return max(Counter(places).values())


def _place(device: "torch.device") -> tuple[str, str]:
    """(host, GPU), the same words for the same GPU in every process, also from within containers."""
    host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return host, str(torch.cuda.get_device_properties(device).uuid)


def _describe(device: "torch.device") -> tuple[str, str]:
    """(vendor, architecture) of a GPU, in build.py's words."""
    if not torch.cuda.is_available():
        raise LabError("torch sees no GPU", hint="run the kernels on the CPU with lab.kernels.host")
    if torch.version.hip:
        return "amd", torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return "nvidia", f"sm_{major}{minor}"


@torch.library.custom_op("lab::all_reduce", mutates_args=())
def _all_reduce(tensor: torch.Tensor, communicator: int) -> torch.Tensor:
    """All_reduce of a live communicator by its `id`: the form that torch.compile and graph capture see."""
    return _communicators[communicator].all_reduce(tensor)


@_all_reduce.register_fake
def _(tensor: torch.Tensor, communicator: int) -> torch.Tensor:
    return torch.empty_like(tensor)


@torch.library.custom_op("lab::all_reduce_", mutates_args=("tensor",))
def _all_reduce_in_place(tensor: torch.Tensor, communicator: int) -> None:
    """The same in place."""
    _communicators[communicator].all_reduce(tensor, out=tensor)


assert set(DTYPES.values()) == set(ITEMSIZE)
