"""The configuration of a protocol, and the units and names that its text uses."""

from __future__ import annotations

from dataclasses import dataclass

from lab.protocol.program import Memory, Order, Scope

RELAXED, ACQUIRE, RELEASE, ACQ_REL = Order
WAVE, BLOCK, DEVICE, SYSTEM = Scope
UNCACHED, CACHED, HOST_MAPPED, BLOCK_SHARED = Memory
KIB = 1024
MIB = 1024 * KIB
ITEMSIZE = {"fp16": 2, "bf16": 2, "fp32": 4}
VECTOR_BYTES = 16
MAX_BLOCKS = 1024


@dataclass(frozen=True)
class Config:
    """One configuration of a protocol.

    Attributes:
        world: Ranks, 2 to 8 (1 for what one rank does alone).
        bytes: Message size of each call, cycled when there are more calls.
        calls: Calls of each rank.
        blocks: Cap on the grid, or None for the protocol's own grid.
        gate: Largest message the staging is laid out for, in bytes; None: the largest of `bytes`.
        dtype: fp16, bf16 or fp32.
        waves: Waves a block; 1 makes the block one agent.
        resident: Blocks that a GPU runs at once; None: as many as there are (`lab.protocol.language.dispatch`).
        gpus: GPUs that the ranks share, rank r on GPU r % gpus; None: each rank has its own.
        scenario: What the hosts do: back_to_back, isolated, or one of the protocol's own.
        options: The protocol's own keyword arguments, as (name, value) pairs.
    """

    world: int = 2
    bytes: tuple[int, ...] = (64 * KIB,)
    calls: int = 1
    blocks: int | None = None
    gate: int | None = None
    dtype: str = "fp16"
    waves: int = 1
    resident: int | None = None
    gpus: int | None = None
    scenario: str = "back_to_back"
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        """In words: `world 3, 8 blocks, 1 call, 65536 bytes, fp16, back_to_back`, then what is not the default."""
        words = [
            f"world {self.world}",
            "its own grid" if self.blocks is None else _counted(self.blocks, "block"),
            _counted(self.calls, "call"),
            f"{', '.join(map(str, self.bytes))} bytes",
            self.dtype,
            self.scenario,
        ]
        words += [f"gate {self.gate} bytes"] if self.gate is not None else []
        words += [f"{self.waves} waves a block"] if self.waves != 1 else []
        words += [f"{self.resident} resident"] if self.resident is not None else []
        words += [_counted(self.gpus, "GPU")] if self.gpus is not None else []
        words += [f"{name}={value}" for name, value in self.options]
        return ", ".join(words)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return ITEMSIZE[self.dtype]

    @property
    def max_bytes(self) -> int:
        """The gate in bytes."""
        return self.gate if self.gate is not None else max(self.bytes)

    def items(self) -> tuple[tuple[str, object], ...]:
        """All parameters as (name, value), sorted by name."""
        return tuple(sorted((name, getattr(self, name)) for name in self.__dataclass_fields__))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
