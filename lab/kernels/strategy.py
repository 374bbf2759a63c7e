"""Which kernel, and how many blocks, for a message: a table of switch points, measured where it says so."""

from dataclasses import dataclass

from lab.errors import LabError
from lab.kernels.staging import MAX_BLOCKS, VECTOR, Layout


@dataclass(frozen=True)
class Plan:
    """How one call is launched; the same on every rank."""

    algorithm: str
    blocks: int
    threads: int


@dataclass(frozen=True)
class Room:
    """What of a rank is certain to run at the same time; a block that waits for one that cannot start waits for ever.

    Attributes:
        blocks: at most this many blocks.
        threads: at most this many threads in all.
    """

    blocks: int
    threads: int

    @classmethod
    def of_shared_gpu(cls, multiprocessors: int, ranks: int) -> "Room":
        """A GPU that several ranks share: a multiprocessor for every block of every rank, and four left over.

        A peer's call may stand behind a kernel of somebody else's on its stream, and that kernel needs a
        multiprocessor too. Seen on an H200 with eight ranks of 32 to 64 blocks of one_shot or two_shot on all
        multiprocessors: torch's sleep kernel started only when the waits had reached their bound, though registers
        and threads left room. low_latency, which uses no block-shared memory, as that kernel, let it in; kernels
        that split L1 and shared memory differently seem not to share a multiprocessor.
        """
        blocks = (multiprocessors - 4) // ranks
        return cls(blocks, blocks * 512)


@dataclass(frozen=True)
class Band:
    """Messages of at most `max_bytes` use `algorithm` in blocks of `threads`, at most `max_blocks` of them.

    `vectors` is how many 16-byte vectors a thread takes before another block is worth its launch.
    """

    max_bytes: int
    algorithm: str
    threads: int
    max_blocks: int
    vectors: int = 1


@dataclass(frozen=True)
class Strategy:
    """Bands by rising size. `source` says what the switch points rest on."""

    bands: tuple[Band, ...]
    source: str

    def __post_init__(self):
        sizes = [band.max_bytes for band in self.bands]
        if not sizes or sizes != sorted(set(sizes)):
            raise LabError("bands of a strategy must rise in size", value=sizes)
        for band in self.bands:
            if band.threads % 32 or not 32 <= band.threads <= 512:
                raise LabError("threads of a band", value=band.threads, hint="use a multiple of 32 up to 512")

    def plan(self, nbytes: int, layout: Layout, room: Room) -> Plan | None:
        """The launch for a message, or None when it is too large for its band and for every later one.

        Args:
            nbytes: message size in bytes, of any alignment.
            layout: what the workspace can hold.
            room: what of this rank is certain to run at the same time.
        """
        for band in self.bands:
            if nbytes <= min(band.max_bytes, layout.capacity(band.algorithm)):
                return launch_shape(band, nbytes, layout.world, room)
        return None


def launch_shape(band: Band, nbytes: int, world: int, room: Room) -> Plan:
    """Blocks for the vectors that one rank handles in a phase: the message, or its part in two_shot."""
    vectors = -(-nbytes // VECTOR)
    if band.algorithm == "two_shot":
        vectors = -(-vectors // world)
    wanted = -(-vectors // (band.threads * band.vectors))
    limit = min(band.max_blocks, room.blocks, room.threads // band.threads, MAX_BLOCKS)
    return Plan(band.algorithm, max(1, min(wanted, limit)), band.threads)


def fixed(algorithm: str, threads: int = 512) -> Strategy:
    """One algorithm for every size."""
    return Strategy((Band(1 << 62, algorithm, threads, MAX_BLOCKS),), source="asked for by name")


def traffic_rule(world: int, low_latency_max: int = 256 << 10) -> Strategy:
    """The rule where nothing has been measured: low latency while small, then the lighter link traffic.

    With two ranks one-shot and two-shot send the same bytes, and one-shot meets once.
    """
    large = "one_shot" if world == 2 else "two_shot"
    bands = (
        Band(low_latency_max, "low_latency", 256, 64),
        Band(1 << 62, large, 512, 64),
        Band((1 << 62) + 1, "two_shot", 512, 64),
    )
    return Strategy(bands, source="traffic rule, not measured")


# (architecture, world) -> measured table. One-shot's traffic equals two-shot's with two ranks, so low_latency, which
# never waits for a fence, wins at every size there.
MEASURED: dict[tuple[str, int], Strategy] = {
    ("sm_90", 2): Strategy(
        (
            Band(2 << 10, "low_latency", 256, 512),
            Band(1 << 20, "low_latency", 128, 512),
            Band(1 << 62, "low_latency", 256, 512),
            Band((1 << 62) + 1, "two_shot", 512, 264),
        ),
        source="2 x H200 on NVLink, experiments/how_fast_are_the_kernels, 2026-11-30",
    ),
}


def default(architecture: str, world: int) -> Strategy:
    """The measured table of this architecture and world, or the traffic rule."""
    return MEASURED.get((architecture, world)) or traffic_rule(world)
