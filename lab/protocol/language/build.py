"""Recording all agents of one configuration: hosts run the scenario, every launch runs the kernel once a block."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from lab.errors import LabError
from lab.protocol.errors import ProtocolError, raised_in_text, user_site
from lab.protocol.expr import Const, word
from lab.protocol.language.block import SHARED_WORDS, Block
from lab.protocol.language.config import ACQ_REL, BLOCK_SHARED, HOST_MAPPED, MAX_BLOCKS, RELAXED, SYSTEM, Config
from lab.protocol.language.dispatch import Dispatch, Kernel, Turn
from lab.protocol.language.early_start import Permit, Start, followed_early
from lab.protocol.language.host import Host
from lab.protocol.language.launch import Launch
from lab.protocol.language.layout import Buffer
from lab.protocol.language.memory import Declare
from lab.protocol.language.owned import Owned
from lab.protocol.language.record import Budget, Recorder
from lab.protocol.language.recording import Text
from lab.protocol.program import WHOLE, Agent, Memory, Move, Program, Region, Rmw, Store, Wait, WaitStamp

MAX_REGIONS = 1_000_000


@dataclass
class Builder:
    """Records all agents of one configuration.

    `followed` are the launches, as (rank, sequence), that the next of their stream overlaps. That is known when all
    hosts have spoken, so where it is not what was given, everything is recorded again. By (rank, stream):

    * `before`: the kernels that may still run, as (word, value when done);
    * `waited`: what the last kernel waited for; `events`: what the next one waits for besides its stream;
    * `permits`: what counts the blocks of the last kernel that let an overlapping one start, and how many there are.
    """

    protocol: Text
    config: Config
    regions: list[Region] = field(default_factory=list)
    agents: list[Agent] = field(default_factory=list)
    before: dict[tuple[int, int], list[tuple[Buffer, int]]] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    events: dict[tuple[int, int], list[tuple[Buffer, int]]] = field(default_factory=dict)
    waited: dict[tuple[int, int], list[tuple[Buffer, int]]] = field(default_factory=dict)
    followed: frozenset[tuple[int, int]] = frozenset()
    permits: dict[tuple[int, int], tuple[Buffer, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options: dict[str, Any] = dict(self.config.options)
        self.owned: list[dict[str, Buffer]] = [{} for _ in range(self.config.world)]
        self.outputs = [0] * self.config.world
        self._owners = [Owned(rank, regions) for rank, regions in enumerate(self.owned)]
        self._chains: dict[tuple[object, ...], int] = {}
        self._budget = Budget()
        self.host_barrier = Buffer(self.region("host barrier", 0, "words", HOST_MAPPED, 1))

    def build(self) -> Program:
        """Record everything; what the user's text raises is reported with its line."""
        try:
            return self._build()
        except LabError:
            raise
        except (Exception, SystemExit) as problem:
            raise raised_in_text(problem) from problem

    def _build(self) -> Program:
        for rank in range(self.config.world):
            self.protocol.memory(Declare(self, rank))
        scenario = self.protocol.scenarios[self.config.scenario]
        self.dispatch = Dispatch(self, self._all_kernels())
        for rank in range(self.config.world):
            recorder = Recorder(phase="host", budget=self._budget)
            scenario(Host(self, recorder, rank))
            recorder.place(recorder.end)
            self._agent(rank, 0, -1, 0, "host", ("host", rank), recorder)
        followed = followed_early(self.kernels)
        if followed != self.followed:
            return Builder(self.protocol, self.config, followed=followed)._build()
        program = Program(
            self.protocol.name,
            self.config.items(),
            self.config.world,
            self.config.dtype,
            self.config.itemsize,
            tuple(self.regions),
            tuple(self.agents),
            len(self._chains),
            self.dispatch.residency(),
        )
        _check_waits(program)
        return program

    def _all_kernels(self) -> list[Kernel]:
        """Every kernel of the configuration, where slots are few: who competes is known when all hosts have spoken."""
        if self.config.resident is None:
            return []
        scout = Builder(self.protocol, replace(self.config, resident=None, gpus=None))
        scout.build()
        return scout.kernels

    def region(self, name: str, rank: int, kind: str, memory: Memory, length: int, **fields: Any) -> Region:
        """A new region."""
        if len(self.regions) >= MAX_REGIONS:
            raise ProtocolError(
                f"too many regions and buffers: {MAX_REGIONS:,}",
                value=name,
                site=user_site(),
                hint="use fewer calls, ranks or blocks; does every loop end?",
            )
        region = Region(len(self.regions), name, rank, kind, memory, length, **fields)
        self.regions.append(region)
        return region

    def owner(self, rank: int) -> Owned:
        """The regions of `rank`."""
        if not 0 <= rank < self.config.world:
            raise ProtocolError(f"there is no rank {rank} in a world of {self.config.world}", site=user_site())
        return self._owners[rank]

    def grid(self, nbytes: int) -> int:
        """Blocks of a launch for `nbytes`."""
        blocks = self.protocol.blocks(nbytes)
        if not isinstance(blocks, int) or not 1 <= blocks <= MAX_BLOCKS:
            raise LabError(
                f"the grid of {self.protocol.name} for {nbytes} bytes is out of range",
                value=blocks,
                hint=f"`blocks` gives 1 to {MAX_BLOCKS}",
            )
        return blocks if self.config.blocks is None else min(blocks, self.config.blocks)

    def running(self, rank: int, stream: int) -> list[tuple[Buffer, int]]:
        """Kernels on the stream that may still run when the next is launched: (word, value when done) of each.

        It is the last one, and with launches that overlap, all since the last that did not.
        """
        return self.before.get((rank, stream), [])

    def ahead(self, rank: int, stream: int) -> list[tuple[Buffer, int]]:
        """All that is on the stream and may still run: its kernels, and those of streams that it waits for."""
        return self.running(rank, stream) + self.events.get((rank, stream), [])

    def join(self, rank: int, stream: int, other: int) -> None:
        """Let the next kernel of `stream` wait for what is on `other` now."""
        self.events.setdefault((rank, stream), []).extend(self.ahead(rank, other))

    def _starts_after(self, rank: int, stream: int, overlap: bool) -> list[tuple[Buffer, int]]:
        """What a kernel that is launched now waits for before it starts.

        One that overlaps the kernel ahead waits for what that one waited for; when that one lets it start is `_start`.
        """
        known = self.waited.get((rank, stream), []) if overlap else self.running(rank, stream)
        self.waited[rank, stream] = known + self.events.pop((rank, stream), [])
        return self.waited[rank, stream]

    def _launched(self, rank: int, stream: int, overlap: bool, done: Buffer, agents: int) -> None:
        before = self.running(rank, stream) if overlap else []
        self.before[rank, stream] = [*before, (done, agents)]

    def new_launch(self, rank: int, sequence: int, call: int, launch: Launch) -> Buffer:
        """Record the blocks of a launch; returns the word with which the host starts them."""
        agents = launch.blocks * self.config.waves
        go, done = self._launch_words(rank, sequence)
        after = self._starts_after(rank, launch.stream, launch.overlap)
        kernel = Kernel(rank, sequence, launch.stream, launch.overlap, launch.blocks, self.config.waves)
        turns, start = self._turns(kernel), self._start(rank, launch)
        permits = self._permits(kernel)
        for block in range(launch.blocks):
            shared = None
            if self.config.waves > 1:
                shared = Buffer(
                    self.region(f"shared of call {call} block {block}", rank, "words", BLOCK_SHARED, SHARED_WORDS)
                )
            for wave in range(self.config.waves):
                recorder = Recorder(budget=self._budget)
                b = Block(self, recorder, rank, call, block, launch, permits[block])
                if shared is not None:
                    b.as_wave(wave, shared)
                self._preamble(b, recorder, go, after, turns[block], wave, start)
                launch.kernel(b)
                self._epilogue(recorder, done, turns[block], wave, permits[block])
                kind = "block" if shared is None else "wave"
                turn = sequence if launch.overlap else 0
                chain = (rank, launch.stream, turn, block, wave)
                self._agent(rank, call, block, wave, kind, chain, recorder, sequence)
        self._launched(rank, launch.stream, launch.overlap, done, agents)
        return go

    def new_stream_kernel(
        self, rank: int, sequence: int, call: int, stream: int, kind: type, phase: str, fields: dict[str, object]
    ) -> Buffer:
        """Record a kernel of one operation on a stream; returns the word with which the host starts it."""
        go, done = self._launch_words(rank, sequence)
        recorder = Recorder(budget=self._budget)
        launch = Launch(lambda b: None, None, None, 0, 1, 1, stream, False, RELAXED, {})
        b = Block(self, recorder, rank, call, 0, launch)
        kernel = Kernel(rank, sequence, stream, False, 1)
        (turn,), (permit,) = self._turns(kernel), self._permits(kernel)
        self._preamble(b, recorder, go, self._starts_after(rank, stream, False), turn, 0)
        b.phase(phase)
        recorder.emit(kind, mapping=WHOLE, **fields)
        self._epilogue(recorder, done, turn, 0, permit)
        self._agent(rank, call, 0, 0, "kernel", (rank, stream, 0, 0, 0), recorder, sequence)
        self._launched(rank, stream, False, done, 1)
        return go

    def _launch_words(self, rank: int, sequence: int) -> tuple[Buffer, Buffer]:
        go = Buffer(self.region(f"launch of call {sequence}", rank, "words", HOST_MAPPED, 1))
        done = Buffer(self.region(f"blocks done of call {sequence}", rank, "words", HOST_MAPPED, 1))
        return go, done

    def _turns(self, kernel: Kernel) -> list[Turn | None]:
        """The turn of each block of a kernel that the host launches now."""
        self.kernels.append(kernel)
        return self.dispatch.turns(kernel)

    def _start(self, rank: int, launch: Launch) -> Start | None:
        """When a launch that overlaps the kernel ahead starts; None: it does not, or there is none."""
        ahead = self.permits.get((rank, launch.stream))
        if not launch.overlap or ahead is None:
            return None
        given, blocks = ahead
        return Start(given.word, blocks, launch.start)

    def _permits(self, kernel: Kernel) -> list[Permit | None]:
        """How each block of a kernel that is launched now lets the next one start; None: that does not overlap it."""
        if (kernel.rank, kernel.sequence) not in self.followed:
            self.permits.pop((kernel.rank, kernel.stream), None)
            return [None] * kernel.blocks
        name = f"call {kernel.sequence}"
        given = Buffer(
            self.region(f"blocks that let the successor of {name} start", kernel.rank, "words", HOST_MAPPED, 1)
        )
        self.permits[kernel.rank, kernel.stream] = given, kernel.blocks
        waves = [
            Buffer(
                self.region(f"waves of {name} block {block} that let or ended", kernel.rank, "words", BLOCK_SHARED, 1)
            )
            for block in range(kernel.blocks)
        ]
        return [Permit(given.word, block.word, kernel.waves) for block in waves]

    def _preamble(
        self,
        b: Block,
        recorder: Recorder,
        go: Buffer,
        after: list[tuple[Buffer, int]],
        turn: Turn | None,
        wave: int,
        start: Start | None = None,
    ) -> None:
        b.phase("launch")
        b.after_kernel(go, 1)
        for done, agents in after:
            b.after_kernel(done, agents)
        if start is not None:
            start.wait(recorder)
        if turn is not None:
            turn.start(recorder, wave)
        b.phase("")

    def _epilogue(self, recorder: Recorder, done: Buffer, turn: Turn | None, wave: int, permit: Permit | None) -> None:
        recorder.returned = False
        recorder.place(recorder.end)
        recorder.phase = "kernel end"
        if permit is not None:
            permit.end(recorder)
        if turn is not None:
            turn.end(recorder, wave)
        fields = {"expected": None, "dst": None, "boundary": True}
        recorder.emit(Rmw, fn="add", word=done.word, value=word(1), order=ACQ_REL, scope=SYSTEM, **fields)

    def _agent(
        self,
        rank: int,
        call: int,
        block: int,
        wave: int,
        kind: str,
        chain: tuple[object, ...],
        recorder: Recorder,
        sequence: int = 0,
    ) -> None:
        ops = recorder.finish()
        index = self._chains.setdefault(chain, len(self._chains))
        self.agents.append(Agent(len(self.agents), rank, call, block, wave, kind, index, ops, sequence))


def _check_waits(program: Program) -> None:
    """Refuse a wait on a region that no agent ever writes, on any rank: one rank that never launches is no mistake.

    Unless what the region holds at first meets the wait.
    """
    ops = [op for agent in program.agents for op in agent.ops]
    written = {op.word.region.name for op in ops if isinstance(op, (Store, Rmw))}
    stamped = {op.dst.region.name for op in ops if isinstance(op, Move) and op.stamp is not None}
    for op in ops:
        if isinstance(op, (Wait, WaitStamp)) and op.on_timeout is None:
            _check_wait(op, written if isinstance(op, Wait) else stamped)


def _check_wait(op: Wait | WaitStamp, known: set[str]) -> None:
    """Refuse a wait on regions of which none is among those `known` to be written, unless it is met at first."""
    words = op.words if isinstance(op, Wait) else ()
    regions = [ref.region for ref in words] if isinstance(op, Wait) else [op.span.region]
    if any(region.name in known for region in regions):
        return
    known_operands = op.of is None or not op.of.operands()
    if known_operands and isinstance(op.value, Const):
        for region in regions:
            first = region.initial if isinstance(op, Wait) else 0
            count = words[0].count if isinstance(op, Wait) else 1
            if op.cond.met(op.of.of(first) if op.of else first, op.value.value, count):
                return
    what = regions[0].name if isinstance(op, Wait) else f"packets into {regions[0].name}"
    raise ProtocolError(f"no agent ever writes {what} of rank {regions[0].rank}, so this wait hangs", site=op.site)
