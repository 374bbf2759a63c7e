"""AllReduce: the kernels behind a torch.distributed group, set up by vote, with a loud fallback."""

import hashlib
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from lab.errors import LabError, UnknownNameError
from lab.kernels import ops, self_test
from lab.kernels.build import ALL_REDUCE, ROUNDINGS
from lab.kernels.device import Device, Place
from lab.kernels.fallback import Fallback
from lab.kernels.links import objection
from lab.kernels.rank import ITEMSIZE, Prepared, Rank
from lab.kernels.registry import Claim, registry
from lab.kernels.residency import Gpu, Wish, offer
from lab.kernels.runtime import gpu
from lab.kernels.staging import MAX_BLOCKS, Wait
from lab.kernels.strategy import Band, Plan, Room, Strategy, default, fixed, launch_shape, layout_for
from lab.kernels.streams import Order
from lab.kernels.tensors import DTYPES, Obstacle, obstacle, refuse_grad, refuse_out
from lab.kernels.votes import PeerGoneError, Votes

log = logging.getLogger(__name__)

WORKSPACE = 32 << 20  # bytes
SET_UP_PATIENCE = 900.0  # seconds for a rank that still compiles
CLOSE_PATIENCE = 30.0  # seconds for calls that still run, and for a rank that lives and has not closed yet
TEST_BOUNDS = (10.0, 20.0)  # timeout and grace in the self-test
CLOSED = "closed"
PREPARED = 4096  # message sizes for which launches are kept ready


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
    kernels cannot be used, torch.distributed does the work and the log says why.

    Calls of one communicator run one after the other. Eager calls see to that themselves, whatever streams they come
    on, and so do the calls of one capture, forked or not. Replays of graphs, among each other and among eager calls,
    are for the caller to order, as with any two pieces of work that use the same memory. One host thread at a time.

    Any number of communicators can live side by side, and beside other libraries' kernels: lab/kernels/residency.py
    says what is guaranteed and why.

    Attributes:
        disabled: why every call falls back, or None while the kernels are in use.
        strategy: the table of switch points in use.
        rank, world: of the group.
        name: the handle for `torch.ops.lab.*`: the same on every rank and in every run of the same program, given once
            in the life of a process.
        max_bytes: messages above go to torch.distributed.
    """

    def __init__(
        self,
        group: "dist.ProcessGroup",
        device: "torch.device | int",
        *,
        max_bytes: int = 64 << 20,
        workspace: int = WORKSPACE,
        algorithm: "str | Strategy" = "auto",
        fallback: "dist.ProcessGroup | None" = None,
        timeout: float = 10.0,
        grace: float = 590.0,
        rounding: str = "RNE",
        blocks: int | None = None,
        share: float | None = None,
        spare: int | None = None,
        alone: bool = False,
        any_links: bool = False,
        test: bool = True,
        marker: Path | None = None,
        name: str | None = None,
        cache: Path | None = None,
    ):
        """Set up, by vote: a step that fails on one rank disables the kernels on all of them.

        Args:
            group: the ranks; of any backend, since only its store is used, for agreement.
            device: this rank's GPU.
            max_bytes: largest message for the kernels, in bytes.
            workspace: bytes of GPU memory to spend; what is larger than its regions goes in several launches.
            algorithm: "auto", a kernel's name, or a Strategy.
            fallback: group for messages that the kernels do not take (RCCL/NCCL), of the same ranks in the same order.
                None: the default group where it has these ranks, else `group` itself.
            timeout: seconds after which a wait for a peer counts as late.
            grace: further seconds after which the peer counts as lost and the call is given up.
            rounding: of 16-bit results, one of build.ROUNDINGS.
            blocks: claim so many blocks of the GPU, 1 to MAX_BLOCKS; None: `share` of what is left.
            share: part of the blocks that are left on the GPU to claim, 2/3 when None.
            spare: multiprocessors to leave to other libraries' kernels that wait for peers; 32 on NVIDIA, 112 on AMD,
                half at most, when None.
            alone: nothing else on this GPU waits for a peer while these calls run: no other communicator of any library
                on another stream. The blocks may then fill it, and successors start at once.
            any_links: use the kernels over PCIe also for more than two ranks.
            test: run the self-test before the first use.
            marker: file to write, with the reason, when a peer is lost; `reset` takes it away.
            name: start of the handle's name; the group's own when None.
            cache: folder of compiled files.

        Raises:
            LabError: an argument is out of range, or `fallback` has other ranks. PeerGoneError: a rank does not come.
                What fails on a machine is voted on, not raised.
        """
        if isinstance(algorithm, str) and algorithm not in ("auto", *ALL_REDUCE):
            raise UnknownNameError("algorithm", algorithm, ["auto", *ALL_REDUCE])
        if rounding not in ROUNDINGS:
            raise UnknownNameError("rounding mode", rounding, ROUNDINGS)
        if blocks is not None and not 1 <= blocks <= MAX_BLOCKS:
            raise LabError("blocks is out of range", value=blocks, hint=f"use 1 to {MAX_BLOCKS}, or None")
        if timeout <= 0 or grace < 0:
            raise LabError("a wait needs a bound", value=(timeout, grace), hint="timeout above 0, grace 0 or above")
        self._wish = Wish(blocks, **({} if share is None else {"share": share}), spare=spare, alone=alone)
        self.marker, self.rounding, self._cache, self._any_links = marker, rounding, cache, any_links
        self.device = _with_index(torch.device("cuda", device) if isinstance(device, int) else torch.device(device))
        self.disabled: str | None = None
        self.name = ""
        self._rank: Rank | None = None
        self._fallback: Fallback | None = None
        self._votes = Votes(group, SET_UP_PATIENCE)
        self.rank, self.world = self._votes.rank, self._votes.world
        self._said: set[str] = set()
        self._told = False
        self._prepared: dict[Any, Sequence[tuple[int, Prepared]] | Obstacle] = {}
        self.strategy: Strategy | None = None
        self.max_bytes = max_bytes
        try:
            self._votes.introduce()
            self._set_up(group, fallback, name, algorithm, workspace, (timeout, grace), test)
        except BaseException as error:
            self._give_up(error)
            raise

    def _set_up(
        self,
        group: "dist.ProcessGroup",
        fallback: "dist.ProcessGroup | None",
        name: str | None,
        algorithm: "str | Strategy",
        workspace: int,
        bounds: tuple[float, float],
        test: bool,
    ) -> None:
        # A name and a fallback are needed whether or not there will be kernels, so a failure here is raised.
        base = name if name is not None else f"lab:{group.group_name}"
        numbers, failures = self._votes.agree(lambda: registry.next_number(base))
        if not failures:
            self.name = registry.enter(base, max(numbers), self)
            _, failures = self._votes.agree(lambda: self._take_fallback(group, fallback))
        if failures:
            raise LabError("the communicator cannot be set up", value="; ".join(failures))
        if self.world == 1:
            self.disabled = "one rank has nothing to reduce"
            return
        places = self._step("plan", lambda: self._plan(algorithm, workspace))
        if len({digest for digest, _ in places}) > 1:
            self._disable("plan", "ranks disagree on strategy, sizes, architecture or rounding")
        elif len({place.host for _, place in places}) > 1:
            self._disable("place", "ranks are on several hosts")
        where = [place for _, place in places]
        links = self._step("links", lambda: self._links(where))
        unfit = objection(links, self._any_links) if links else None
        if unfit:
            self._disable("links", unfit)
        shared = self._step("allocate", lambda: self._allocate(where, bounds))
        if not self.disabled:
            self._take_room([offered for _, offered in shared])
        self._step("connect", lambda: self._rank.connect([address for address, _ in shared]))
        if test:
            self._step("self-test", lambda: self._self_test(bounds))

    def _take_fallback(self, group: "dist.ProcessGroup", given: "dist.ProcessGroup | None") -> None:
        self._fallback = Fallback(group, given)

    def _plan(self, algorithm: "str | Strategy", workspace: int) -> tuple[str, Place]:
        if not 2 <= self.world <= 8:
            raise LabError("world is out of range", value=self.world, hint="use 2 to 8 ranks")
        self._device = Device(self.device)
        architecture = self._device.architecture
        if isinstance(algorithm, Strategy):
            self.strategy = algorithm
        else:
            self.strategy = default(architecture, self.world) if algorithm == "auto" else fixed(algorithm)
        self.layout = layout_for(self.strategy, self.world, workspace, self.max_bytes)
        self.max_bytes = min(self.max_bytes, self.strategy.max_bytes)
        agreed = [asdict(self.strategy), asdict(self.layout), self.max_bytes, architecture, self.rounding]
        digest = hashlib.sha256(json.dumps(agreed).encode()).hexdigest()
        return digest, self._device.place(self._cache)

    def _links(self, places: Sequence[Place]) -> dict[int, str]:
        runtime = gpu(self._device.vendor, self._cache)
        others = [peer for peer in range(self.world) if peer != self.rank]
        return {peer: runtime.link(self._device.index, places[peer].bus) for peer in others}

    def _allocate(self, places: Sequence[Place], bounds: tuple[float, float]) -> tuple[Any, int]:
        sharing = ranks_on_a_gpu([(place.host, place.gpu) for place in places])
        self._rank = Rank(
            self._device.vendor, self._device.architecture, self._device.index, self.rank, self.layout,
            timeout=bounds[0], grace=bounds[1], overlap=sharing == 1,
            early_blocks=MAX_BLOCKS if self._wish.alone else 0, rounding=self.rounding, cache=self._cache,
        )  # fmt: skip
        self._gpu = places[self.rank].gpu
        here = Gpu(self._device.vendor, self._device.multiprocessors(), self._rank.blocks_per_multiprocessor(), sharing)
        return self._rank.share(), offer(here, self._wish, registry.claimed(self._gpu))

    def _take_room(self, offers: Sequence[int]) -> None:
        blocks = min(offers)
        registry.claim(self.name, Claim(self._gpu, blocks, self._wish.alone))
        self.room = Room(MAX_BLOCKS if self._wish.alone else blocks, blocks * 512)
        self._order = Order(self._rank.capture_of, self._rank.order)

    def _step(self, name: str, work: Callable[[], Any]) -> list[Any]:
        """Do a set-up step, then vote. Returns every rank's result; disables all ranks when one failed."""
        if self.disabled:
            return []
        results, failures = self._votes.agree(work)
        if failures:
            self._disable(name, "; ".join(failures))
            return []
        return results

    def _disable(self, step: str, reason: str) -> None:
        self.disabled = f"{step}: {reason}"
        text = f"lab all-reduce is off on all {self.world} ranks, torch.distributed takes over. {self.disabled}"
        log.warning(text)
        if self.rank == 0:
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        self._release(CLOSE_PATIENCE)

    def _self_test(self, bounds: tuple[float, float]) -> int:
        def plans(nbytes: int) -> list[Plan]:
            tried = [self.strategy, *(fixed(name, threads=256) for name in ALL_REDUCE)]
            found = [strategy.plan(nbytes, self.layout, self.room) for strategy in tried]
            return [plan for plan in found if plan]

        rounds = self.world + 1
        meetings = iter(range(rounds + 1))
        self._rank.set_bounds(*TEST_BOUNDS)
        try:
            outcome = self_test.run(
                [self._rank],
                plans,
                max_bytes=min(self.strategy.largest(self.layout), self.max_bytes),
                rounds=rounds,
                rounding=self.rounding,
                barrier=lambda: self._meet_in_test(next(meetings)),
            )
        finally:  # a rank that failed keeps nobody waiting
            for number in meetings:
                self._votes.say(f"test {number}")
        if outcome.failures:
            raise LabError("the self-test failed\n" + "\n".join(outcome.failures))
        self._rank.set_bounds(*bounds)
        return outcome.calls

    def _meet_in_test(self, number: int) -> None:
        missing = self._votes.meet(f"test {number}", SET_UP_PATIENCE)
        if missing:
            raise LabError("a rank left the self-test", value=missing)

    def ineligible(self, tensor: "torch.Tensor") -> str | None:
        """Why `tensor` would fall back, or None. Depends on type, shape and strides only, so agrees on all ranks."""
        if self.disabled:
            return self.disabled
        found = self._launches(tensor)
        return found.text if isinstance(found, Obstacle) else None

    def _launches(self, tensor: "torch.Tensor") -> "Sequence[tuple[int, Prepared]] | Obstacle":
        """The launches of an all-reduce, each with where it starts in bytes; worked out once for a type and size."""
        if tensor.device != self.device or not tensor.is_contiguous() or tensor.is_neg():
            found = obstacle(tensor, self.device)
            if found:
                return found
        key = (tensor.dtype, tensor.numel())
        ready = self._prepared.get(key)
        if ready is None:
            ready = obstacle(tensor, self.device) or self._cut(tensor)
            if len(self._prepared) >= PREPARED:
                self._prepared.clear()
            self._prepared[key] = ready
        return ready

    def _cut(self, tensor: "torch.Tensor") -> "Sequence[tuple[int, Prepared]] | Obstacle":
        nbytes, dtype = tensor.numel() * tensor.element_size(), DTYPES[tensor.dtype]
        if nbytes > self.max_bytes:
            return Obstacle("size", f"{nbytes} bytes are more than the {self.max_bytes} that the kernels take")
        found, at = [], 0
        for piece in self.strategy.pieces(nbytes, self.layout):
            plan = self.strategy.plan(piece, self.layout, self.room)
            found.append((at, self._rank.prepare(plan, dtype, piece // tensor.element_size())))
            at += piece
        return found

    def all_reduce(self, tensor: "torch.Tensor", out: "torch.Tensor | None" = None) -> "torch.Tensor":
        """Sum over all ranks, on the current stream; nothing is waited for.

        Args:
            tensor: the same type, shape and strides on every rank. Elements are summed by their place in memory. It
                has no gradient here: where it requires one, call this under torch.no_grad() or on tensor.detach().
            out: where to put the sum: `tensor` itself or a tensor like it that shares no memory; new when None.

        Returns:
            `out`, or a new tensor with `tensor`'s type and (where they leave no gaps) strides: fp32 sums in rank order,
            rounded once, the same bits on every rank and for every algorithm.

        Raises:
            LabError: `out` does not fit, or the tensor requires a gradient. PeerLostError: an earlier call, or one of a
                replayed graph, lost a peer.
        """
        refuse_grad(tensor)
        if out is None:
            out = torch.empty_like(tensor, memory_format=torch.preserve_format)
        elif out is not tensor or not tensor.is_contiguous():
            refuse_out(tensor, out)
        if self.disabled:
            self._refuse_closed()
            return self._fall_back(tensor, out, Obstacle("disabled", self.disabled))
        launches = self._launches(tensor)
        if isinstance(launches, Obstacle):
            return self._fall_back(tensor, out, launches)
        self._queue(launches, tensor.data_ptr(), out.data_ptr())
        return out

    def _refuse_closed(self) -> None:
        if self.disabled == CLOSED:
            raise LabError("this communicator is closed", value=self.name)

    def _queue(self, launches: "Sequence[tuple[int, Prepared]]", source: int, target: int) -> None:
        if self._rank.lost():
            self._raise_lost()
        stream = self._device.stream()
        self._order.queue_on(stream)
        for at, prepared in launches:
            self._rank.start(prepared, source + at, target + at, stream)

    def _fall_back(self, tensor: "torch.Tensor", out: "torch.Tensor", why: Obstacle) -> "torch.Tensor":
        self._say(tensor, why)
        self._fallback.all_reduce(tensor, out)
        return out

    def _say(self, tensor: "torch.Tensor", why: Obstacle) -> None:
        if why.kind in self._said or self.world == 1:
            return
        self._said.add(why.kind)
        log.warning("a call on %s %s by torch.distributed: %s", tensor.dtype, tuple(tensor.shape), why.text)

    def shape_of_part(self, tensor: "torch.Tensor", dim: int) -> tuple[int, ...]:
        """The shape that `reduce_scatter` gives. LabError where `dim` cannot be divided among the ranks."""
        dim = _dimension(tensor, dim)
        if tensor.shape[dim] % self.world:
            raise LabError(
                f"dimension {dim} cannot be divided among {self.world} ranks", value=tuple(tensor.shape),
                hint="pad it to a multiple",
            )  # fmt: skip
        return (*tensor.shape[:dim], tensor.shape[dim] // self.world, *tensor.shape[dim + 1 :])

    def shape_of_whole(self, tensor: "torch.Tensor", dim: int) -> tuple[int, ...]:
        """The shape that `all_gather` gives."""
        dim = _dimension(tensor, dim)
        return (*tensor.shape[:dim], tensor.shape[dim] * self.world, *tensor.shape[dim + 1 :])

    def reduce_scatter(self, tensor: "torch.Tensor", dim: int = 0) -> "torch.Tensor":
        """Sum over all ranks; rank r keeps the r-th of `world` equal parts along `dim`. Else as `all_reduce`.

        Args:
            tensor: the same type and shape on every rank.
            dim: the dimension to divide; its size is a multiple of the number of ranks. Along any but the first one the
                tensor is copied once.

        Returns:
            A new contiguous tensor: the part of what `all_reduce` gives, bit for bit (with any rounding but SR).

        Raises:
            LabError, PeerLostError: as `all_reduce`.
        """
        refuse_grad(tensor)
        shape = self.shape_of_part(tensor, dim)
        dim = _dimension(tensor, dim)
        first = tensor.movedim(dim, 0).contiguous()
        part = torch.empty((first.shape[0] // self.world, *first.shape[1:]), dtype=tensor.dtype, device=tensor.device)
        why = self._refuse_part(first, part)
        if why:
            self._say(tensor, why)
            self._fallback.reduce_scatter(first, part)
        else:
            # A part is cut at the same places on every rank; the parts of one cut must lie one behind the other.
            self._in_cuts("reduce_scatter", part.view(-1), first.view(self.world, -1), scatter=True)
        return part.movedim(0, dim).contiguous().view(shape)

    def all_gather(self, tensor: "torch.Tensor", dim: int = 0) -> "torch.Tensor":
        """Every rank's tensor, one behind the other along `dim`, in rank order. Else as `all_reduce`.

        Args:
            tensor: the same type and shape on every rank.
            dim: the dimension that grows; along any but the first one the result is copied once.

        Returns:
            A new contiguous tensor, bit for bit.

        Raises:
            LabError, PeerLostError: as `all_reduce`.
        """
        refuse_grad(tensor)
        shape = self.shape_of_whole(tensor, dim)
        dim = _dimension(tensor, dim)
        mine = tensor.contiguous()
        every = torch.empty((self.world, *mine.shape), dtype=tensor.dtype, device=tensor.device)
        why = self._refuse_part(mine, mine)
        if why:
            self._say(tensor, why)
            self._fallback.all_gather(mine, every)
        else:
            self._in_cuts("all_gather", mine.view(-1), every.view(self.world, -1), scatter=False)
        return every.movedim(0, dim).reshape(shape)

    def _refuse_part(self, tensor: "torch.Tensor", part: "torch.Tensor") -> Obstacle | None:
        if self.disabled:
            self._refuse_closed()
            return Obstacle("disabled", self.disabled)
        found = obstacle(tensor, self.device)
        if found is None and part.numel() * part.element_size() * self.world > self.max_bytes:
            return Obstacle(
                "size", f"{self.world} parts are more than the {self.max_bytes} bytes that the kernels take"
            )
        return found

    def _in_cuts(self, kernel: str, part: "torch.Tensor", whole: "torch.Tensor", scatter: bool) -> None:
        """Launch `kernel` for cuts of a part that the workspace holds; `whole` is one row a rank.

        Args:
            kernel: "reduce_scatter" or "all_gather".
            part: this rank's part, shape (elements,).
            whole: all parts, shape (world, elements).
            scatter: from `whole` to `part`; else the other way.
        """
        step = self.layout.capacity(kernel) // part.element_size()
        for first in range(0, part.numel(), step):
            mine, every = part[first : first + step], whole[:, first : first + step]
            rows = every if every.is_contiguous() else torch.empty_like(every, memory_format=torch.contiguous_format)
            if scatter and rows is not every:
                rows.copy_(every)
            band = Band(1 << 62, kernel, 128, MAX_BLOCKS)
            plan = launch_shape(band, mine.numel() * mine.element_size(), self.world, self.room)
            source, target = (rows, mine) if scatter else (mine, rows)
            ready = self._rank.prepare(plan, DTYPES[part.dtype], mine.numel())
            self._queue([(0, ready)], source.data_ptr(), target.data_ptr())
            if not scatter and rows is not every:
                every.copy_(rows)

    def check(self) -> tuple[Wait, ...]:
        """Look at the kernels' reports without a device synchronisation; returns late waits, if any.

        The only notice of a loss in a replayed graph that comes before the next eager call: ask after every step.

        Raises:
            PeerLostError: a wait was given up. The marker file has been written by then.
        """
        self._raise_lost()
        return tuple(wait for wait in self._rank.waits() if wait.kind == "late") if self._rank else ()

    def _raise_lost(self) -> None:
        error = self._loss()
        if error is not None:
            self._told = True
            raise error

    def _loss(self) -> PeerLostError | None:
        """The error that a lost peer is, with the marker written; None while nobody was lost."""
        if self._rank is None or not self._rank.lost():
            return None
        error = PeerLostError([wait for wait in self._rank.waits() if wait.kind == "lost"])
        if self.marker is not None:
            self.marker.parent.mkdir(parents=True, exist_ok=True)
            self.marker.write_text(f"rank {self.rank} of {self.world}\n{error}\n")
        return error

    def reset(self) -> None:
        """Start afresh after a loss, by agreement: every rank waits for its kernels, then all empty their state.

        Raises:
            PeerGoneError: a rank's process has ended, or it does not come; close the communicator then.
        """

        def quiet() -> int:
            if not self._rank.drain(CLOSE_PATIENCE, lambda: bool(self._rank.lost() or self._votes.gone())):
                raise LabError("the GPU does not come to rest", hint="something that is not ours still runs on it")
            return self._rank.epoch()

        epochs = self._step("reset", quiet)
        if not self.disabled:
            self._step("reset", lambda: self._rank.reset(max(epochs)))
        if not self.disabled:
            self._told = False
            if self.marker is not None:
                self.marker.unlink(missing_ok=True)

    def close(self) -> None:
        """Give everything back: calls end, all ranks give their peers' memory back, meet, then free their own.

        Takes at most about a minute: calls that still wait for a peer after 30 s, or for one that has ended, are given
        up, and a rank that lives but does not come is waited for 30 s; what it may still use is then kept, the log
        says so, and a later `close` tries again. A second call does nothing.

        Raises:
            PeerLostError: a peer was lost and neither a call nor `check` has said so; everything has been given back.
        """
        loss = None if self._told else self._loss()
        failure = self._release(CLOSE_PATIENCE)
        self.disabled = CLOSED
        for error in (loss, failure):
            if error is not None:
                self._told = True
                raise error

    def _release(self, patience: float) -> Exception | None:
        """Give everything back and go on after a failure. Returns the first one."""
        errors: list[Exception] = []

        def attempt(work: Callable[[], Any]) -> Any:
            try:
                return work()
            except Exception as error:
                errors.append(error)
                return None

        rank = self._rank
        quiet = True
        if rank is not None:
            quiet = bool(attempt(lambda: rank.drain(patience, lambda: bool(rank.lost() or self._votes.gone()))))
            attempt(rank.unmap)
        missing = attempt(lambda: self._votes.meet("unmapped", patience)) or []
        alive = [peer for peer in missing if peer not in self._votes.gone()]
        if rank is not None and (alive or not quiet):
            who = f"rank {alive[0]} has not closed and may use it" if alive else "something still runs on the GPU"
            log.warning("%d bytes of GPU memory are kept: %s", self.layout.total_bytes, who)
        elif rank is not None:
            attempt(rank.close)
            self._rank = None
            registry.give_back(self.name)
        return errors[0] if errors else None

    def _give_up(self, error: BaseException) -> None:
        """Release after `error`, which stays the one that is told."""
        at_once = isinstance(error, PeerGoneError) or not isinstance(error, Exception)  # nobody to wait for, or Ctrl-C
        second = self._release(0.0 if at_once else CLOSE_PATIENCE)
        self.disabled = CLOSED
        if second is not None:
            error.add_note(f"and closing the communicator failed: {type(second).__name__}: {second}")

    def __del__(self) -> None:
        if getattr(self, "_rank", None) is not None:  # kept: graphs may still hold its calls, and peers its memory
            warnings.warn(f"communicator {self.name} was not closed; its memory stays", ResourceWarning, stacklevel=2)

    def __enter__(self) -> "AllReduce":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._give_up(error)


def ranks_on_a_gpu(places: Sequence[tuple[str, str]]) -> int:
    """How many ranks the most crowded GPU has, given every rank's (host, GPU)."""
    return max(Counter(places).values())


def _with_index(device: "torch.device") -> "torch.device":
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _dimension(tensor: "torch.Tensor", dim: int) -> int:
    if not -tensor.dim() <= dim < tensor.dim():
        raise LabError("the tensor has no such dimension", value=dim, hint=f"it has {tensor.dim()}")
    return dim % tensor.dim()


assert set(DTYPES.values()) == set(ITEMSIZE)
assert ops
