"""Which kernel, and how many blocks, for a message: a table of switch points, measured where it says so."""

from dataclasses import dataclass

from lab.errors import LabError
from lab.kernels.build import ALL_REDUCE
from lab.kernels.staging import MAX_BLOCKS, VECTOR, Layout

KI, MI = 1 << 10, 1 << 20
EVERY_SIZE = 1 << 62
PIECE = 4 << 10  # bytes; what a message that is cut up is cut at
PARTS = 2 << 20  # bytes of a message of reduce_scatter or all_gather, all parts together, that goes in one launch
SMALLEST = 16 << 10  # bytes; of a region that no band uses, so that the self-test can


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
    """Bands by rising size.

    Attributes:
        bands: by rising size.
        source: what the switch points rest on.
        max_bytes: messages above are handed over to torch.distributed.
    """

    bands: tuple[Band, ...]
    source: str
    max_bytes: int = EVERY_SIZE

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

    def largest(self, layout: Layout) -> int:
        """The largest message in bytes that one launch can carry."""
        return max(min(band.max_bytes, layout.capacity(band.algorithm)) for band in self.bands)

    def pieces(self, nbytes: int, layout: Layout) -> list[int]:
        """A message as launches: the fewest, nearly equal, each but the last a multiple of 4 KiB."""
        largest = self.largest(layout)
        count = -(-nbytes // largest)
        if count <= 1:
            return [nbytes]
        step = min(-(-nbytes // (count * PIECE)) * PIECE, largest // PIECE * PIECE)
        if step == 0:
            raise LabError(
                "the workspace is too small to cut a message up", value=largest, hint=f"{PIECE} bytes or more"
            )
        whole = nbytes // step
        return [step] * whole + [nbytes - step * whole] * (nbytes > step * whole)


def launch_shape(band: Band, nbytes: int, world: int, room: Room) -> Plan:
    """Blocks for the vectors that one rank handles in a phase: the message, or its part in two_shot.

    Where the room has fewer blocks than the band would take, the blocks get larger instead.
    """
    vectors = -(-nbytes // VECTOR)
    if band.algorithm == "two_shot":
        vectors = -(-vectors // world)
    threads = band.threads
    wanted = -(-vectors // (threads * band.vectors))
    while min(wanted, band.max_blocks) > room.blocks and threads <= 256:
        threads *= 2
        wanted = -(-vectors // (threads * band.vectors))
    limit = min(band.max_blocks, room.blocks, room.threads // threads, MAX_BLOCKS)
    return Plan(band.algorithm, max(1, min(wanted, limit)), threads)


def fixed(algorithm: str, threads: int = 512) -> Strategy:
    """One algorithm for every size."""
    return Strategy((Band(EVERY_SIZE, algorithm, threads, MAX_BLOCKS),), source="asked for by name")


def layout_for(strategy: Strategy, world: int, workspace: int, max_bytes: int) -> Layout:
    """The largest messages, all limited alike, whose regions fit into a workspace.

    Args:
        strategy: which algorithms carry what.
        world: ranks.
        workspace: bytes that a rank may spend.
        max_bytes: largest message that will come.

    Raises:
        LabError: not even the smallest regions fit.
    """
    most = {name: SMALLEST for name in ALL_REDUCE}
    for band in strategy.bands:
        most[band.algorithm] = max(min(band.max_bytes, max_bytes, strategy.max_bytes), most[band.algorithm])

    most["two_shot"] = max(most["two_shot"], min(PARTS, max_bytes))  # their regions are two_shot's

    def limited(cap: int) -> Layout:
        held = {name: min(limit, cap) for name, limit in most.items()}
        return Layout(world, held["two_shot"], held["one_shot"], held["low_latency"])

    low, high = SMALLEST // PIECE, -(-max(most.values()) // PIECE)
    if limited(low * PIECE).total_bytes > workspace:
        raise LabError(
            "the workspace is too small",
            value=workspace,
            hint=f"{limited(low * PIECE).total_bytes} bytes are the least",
        )
    while low < high:  # the largest cap that fits
        middle = (low + high + 1) // 2
        low, high = (middle, high) if limited(middle * PIECE).total_bytes <= workspace else (low, middle - 1)
    return limited(low * PIECE)


# (architecture, world) -> measured table. One-shot's traffic equals two-shot's with two ranks, so low_latency, which
# never waits for a fence, wins at every size there.
MEASURED: dict[tuple[str, int], Strategy] = {
    ("sm_90", 2): Strategy(
        (
            Band(2 * KI, "low_latency", 256, 512),
            Band(1 * MI, "low_latency", 128, 512),
            Band(EVERY_SIZE, "low_latency", 256, 512),
        ),
        source="2 x H200 on NVLink, experiments/how_fast_are_the_kernels, 2026-11-30",
    ),
}

# Not measured here: where one phase of pushes stops paying (it sends (W-1) N instead of 2 (W-1)/W N), and the size
# from which torch.distributed was faster than kernels of this kind without multicast. By others' own tables; a number
# of ranks that a table leaves out takes the row of the next larger one, an architecture the smallest of all.
PUSH_SOURCE = "SGLang's thresholds of its one-shot push kernel (THRESHOLD_2_SHOT_MAP, H200 and B200)"
PUSH_UP_TO: dict[str, dict[int, int]] = {
    "sm_90": {3: 512 * KI, 4: 384 * KI, 5: 256 * KI, 6: 192 * KI, 7: 192 * KI, 8: 160 * KI},
    "sm_100": {2: 4 * MI, 3: 4 * MI, 4: 2 * MI, 5: 2 * MI, 6: 1 * MI, 7: 896 * KI, 8: 720 * KI},
}
HAND_OVER_SOURCE = "vLLM's largest messages of its custom all-reduce (CUSTOM_ALL_REDUCE_MAX_SIZES)"
HAND_OVER_ABOVE: dict[str, dict[int, int]] = {
    "sm_90": {2: 64 * MI, 4: 32 * MI, 6: 512 * KI, 8: 256 * KI},
    "sm_100": {2: 2 * MI, 4: 2 * MI, 6: 1 * MI, 8: 1 * MI},
    "sm_103": {2: 4 * MI, 4: 4 * MI, 6: 8 * MI, 8: 4 * MI},
}
AMD_SOURCE = "the largest message that vLLM gives its custom all-reduce on AMD (8 MiB)"
AMD_HAND_OVER = 8 * MI


def _row(table: dict[str, dict[int, int]], architecture: str, world: int) -> int:
    rows = [table[architecture]] if architecture in table else list(table.values())
    return min(row[min(w for w in row if w >= world)] for row in rows)


def unmeasured(architecture: str, world: int) -> Strategy:
    """The table where nothing was measured here: switch points from others' figures, each named in `source`.

    One phase while it pays, then two; 128 threads a block, so that a part of a message spreads over the whole GPU.
    """
    push = _row(PUSH_UP_TO, architecture, world)
    above, source = _row(HAND_OVER_ABOVE, architecture, world), HAND_OVER_SOURCE
    if architecture.startswith("gfx"):
        above, source = AMD_HAND_OVER, AMD_SOURCE
    if world == 2:  # the same bytes in one phase as in two
        bands: tuple[Band, ...] = (Band(EVERY_SIZE, "low_latency", 128, MAX_BLOCKS),)
        return Strategy(bands, f"not measured; handed over above {above} bytes: {source}", above)
    bands = (Band(push, "low_latency", 128, MAX_BLOCKS), Band(EVERY_SIZE, "two_shot", 128, MAX_BLOCKS))
    said = f"not measured; one phase up to {push} bytes: {PUSH_SOURCE}; handed over above {above} bytes: {source}"
    return Strategy(bands, said, above)


def default(architecture: str, world: int) -> Strategy:
    """The measured table of this architecture and world, or others' figures."""
    return MEASURED.get((architecture, world)) or unmeasured(architecture, world)
