"""The catalogue: published synchronisation defects of custom all-reduces, each with its published fix.

One file a report, described from scratch: the defective protocol at the smallest configuration at which it fails,
and the fix as options of the same text. The checker knows none of them: `expected` says what it should find, not
how. Reports about numbers alone are not here: no order of accesses is wrong in them, and a value here is where it
came from, not its digits. docs/rounding.md has those.

    from lab.protocol.published import entry
    entry("pytorch#137257").defective()    # (protocol, configuration)
    entry("pytorch#137257").fixed()
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from lab.errors import UnknownNameError
from lab.protocol.write import Config, Protocol

REUSE = "reuse before consumption"
ORDER = "memory order"
BLOCKS = "blocks inside a rank"
COUNTERS = "counters, flags, graphs, votes"


@dataclass(frozen=True)
class Entry:
    """One published defect.

    Attributes:
        id: Where it was reported.
        protocol: The protocol in the language.
        module: Its module in this package.
        group: The class of defect.
        missing: What is missing.
        fix: What the published fix adds.
        options: The options of the protocol that are the fix.
        verdicts: The verdicts that fit the defect under `sc` and `posted`; `ok` where these models cannot show it.
        weak: The verdicts that fit it under `weak`.
        early_timeout: For defects of bounded waits: the probability that one gives up although others could move.
        repair: What the published fix is called among the repairs of `lab check`, in parts; empty: it is none of them.
        why_no_repair: Then why not.
    """

    id: str
    protocol: str
    module: str
    group: str
    missing: str
    fix: str
    options: tuple[tuple[str, object], ...]
    verdicts: frozenset[str]
    weak: frozenset[str]
    early_timeout: float = 0.0
    repair: tuple[str, ...] = ()
    why_no_repair: str = ""

    def expected(self, memory: str) -> frozenset[str]:
        """The verdicts that fit the defect under a memory model."""
        return self.weak if memory == "weak" else self.verdicts

    def load(self) -> Protocol:
        """The protocol, imported when asked for."""
        return getattr(importlib.import_module(f"{__name__}.{self.module}"), self.protocol)

    def defective(self, **changes: Any) -> tuple[Protocol, Config]:
        """The protocol and its smallest failing configuration, with `changes`."""
        protocol = self.load()
        return protocol, protocol.config(**changes)

    def fixed(self, **changes: Any) -> tuple[Protocol, Config]:
        """The protocol with the published fix, at the same configuration with `changes`."""
        protocol = self.load()
        return protocol, protocol.config(**changes, options=self.options)


def _entry(
    id: str,
    protocol: str,
    group: str,
    verdicts: str,
    missing: str,
    fix: str,
    *,
    weak: str | None = None,
    module: str | None = None,
    early_timeout: float = 0.0,
    repair: str = "",
    why_no_repair: str = "",
    **options: object,
) -> Entry:
    return Entry(
        id,
        protocol,
        module or protocol,
        group,
        missing,
        fix,
        tuple(options.items()),
        frozenset(verdicts.split()),
        frozenset((weak or verdicts).split()),
        early_timeout,
        tuple(part for part in repair.split(" ... ") if part),
        why_no_repair,
    )


ENTRIES: tuple[Entry, ...] = (
    _entry(
        "tokenspeed#1017",
        "tokenspeed_1017",
        REUSE,
        "wrong",
        "the peers' reads before the next overwrite of the shared buffer",
        'a second epoch, "done"',
        done_epoch=True,
        repair="a word `done`",
    ),
    _entry(
        "aiter#3514",
        "aiter_3514",
        REUSE,
        "wrong",
        "the peers' reads of an input before its next writer",
        "an exit barrier",
        exit_barrier=True,
        repair="a meeting of the same block of all ranks after",
    ),
    _entry(
        "aiter#4084",
        "aiter_4084",
        REUSE,
        "wrong",
        "the peers' reads of an input before its memory is used again",
        "the input is kept until the next call",
        keep_input=True,
        why_no_repair="the caller keeps its input: memory of the caller is not moved; a closing meeting is found",
    ),
    _entry(
        "pytorch#137257",
        "pytorch_137257",
        REUSE,
        "wrong",
        "the peers' reads before the next copy into the buffer",
        "a closing barrier",
        closing_barrier=True,
        repair="a meeting of the same block of all ranks after",
    ),
    _entry(
        "rdna_ar D2",
        "rdna_ar_d2",
        REUSE,
        "wrong",
        "a peer's copy out of a slot before the next scatter into it",
        "a region of its own for the allgather",
        own_region=True,
        module="rdna_ar_two_shot",
        repair="a region of its own, beside staging",
    ),
    _entry(
        "vllm-rdna 53b0b10de",
        "vllm_rdna_53b0b10de",
        REUSE,
        "wrong",
        "the life of a result beyond the next call",
        "an output per call",
        output_per_call=True,
        why_no_repair="the caller takes an output per call: memory of the caller is not moved",
    ),
    _entry(
        "vllm#2760",
        "vllm_2760",
        ORDER,
        "race",
        "release of a partial result before its signal",
        "a word a peer, release and acquire",
        word_per_peer=True,
        weak="race wrong",
        why_no_repair="it changes how flags are laid out; orders that close it have too many schedules to be proved",
    ),
    _entry(
        "vllm#57059",
        "vllm_57059",
        ORDER,
        "race",
        "release of the input, acquire by its readers, at system scope",
        "release and acquire at system scope",
        release_acquire=True,
        system_scope=True,
        weak="race wrong",
        repair="acquire instead of relaxed, system scope instead of device",
    ),
    _entry(
        "aiter#2890",
        "aiter_2890",
        ORDER,
        "race",
        "release of the stores into the peers' scratch",
        "a closing barrier that releases and acquires",
        release_acquire=True,
        weak="race wrong",
        repair="release and acquire on end",
    ),
    _entry(
        "aiter#4786",
        "aiter_4786",
        ORDER,
        "race",
        "a fence after bypassing stores; system scope on the poll",
        "both",
        fence=True,
        system_scope=True,
        weak="race wrong hang",
        repair="release and acquire on flag, at system scope",
    ),
    _entry(
        "iris#462",
        "iris_462",
        ORDER,
        "race",
        "release at a scope that includes the peer",
        "system scope",
        system_scope=True,
        weak="race wrong",
        repair="system scope instead of device",
    ),
    _entry(
        "rccl#1932",
        "rccl_1932",
        ORDER,
        "ok",
        "visibility of packets in cached memory",
        "uncached memory, or a release after the stores",
        uncached=True,
        weak="hang",
        repair="uncached memory for packet",
    ),
    _entry(
        "rdna_ar D1",
        "rdna_ar_d1",
        BLOCKS,
        "wrong",
        "another block's reduce before this block's push",
        "a grid barrier, or one mapping for both",
        grid_barrier=True,
        module="rdna_ar_two_shot",
        repair="a grid barrier",
    ),
    _entry(
        "flashinfer#4092",
        "flashinfer_4092",
        BLOCKS,
        "wrong",
        "the stores of the other waves before the flag",
        "a block barrier",
        block_barrier=True,
        repair="a block barrier",
    ),
    _entry(
        "mori#494",
        "mori_494",
        BLOCKS,
        "hang",
        "the last look at a 1 before it is cleared",
        "a value that only grows",
        grow_only=True,
        repair="a value of go that only grows",
    ),
    _entry(
        "vllm#8558",
        "vllm_8558",
        COUNTERS,
        "hang",
        "the reset of a flag before it is raised again",
        "two alternating sets of grow-only counters",
        counters="two sets",
        repair="values of start and end that only grow",
    ),
    _entry(
        "rtp-llm#1418",
        "rtp_llm_1418",
        COUNTERS,
        "hang wrong",
        "a comparison that is right across the wrap",
        "comparison modulo 2**32",
        compare=">=mod",
        repair="`>=mod` instead of `>=s`",
    ),
    _entry(
        "iris#465",
        "iris_465",
        COUNTERS,
        "wrong",
        "a lock value that belongs to one call",
        "the call number as the value",
        call_number=True,
        repair="a value of lock that only grows",
    ),
    _entry(
        "aiter#3928",
        "aiter_3928",
        COUNTERS,
        "wrong",
        "a colour that changes from replay to replay",
        "the colour in device memory",
        colour_in_memory=True,
        why_no_repair="it moves the colour of flags and slots at once into memory; other pairs of changes are found",
    ),
    _entry(
        "aiter#2638",
        "aiter_2638",
        COUNTERS,
        "wrong",
        "agreement on the index of a registered buffer",
        "agreement on the count first",
        agree=True,
        why_no_repair="the hosts exchange a number first: a new exchange of the hosts is not made up",
    ),
    _entry(
        "ROCm/aiter#6918",
        "aiter_6918",
        COUNTERS,
        "wrong",
        "the tensor's offset in its allocation",
        "base handle and offset",
        send_offset=True,
        why_no_repair="another address is sent: no order of accesses is wrong",
    ),
    _entry(
        "local-inference-lab/vllm#618",
        "local_inference_lab_vllm_618",
        COUNTERS,
        "hang",
        "a rank that has left before a collective",
        "a vote before each collective",
        vote=True,
        why_no_repair="the hosts vote before each collective: a new exchange of the hosts is not made up",
    ),
    _entry(
        "rdna_ar false wedge",
        "rdna_ar_false_wedge",
        COUNTERS,
        "abort",
        "time: the peer is late, not lost",
        "a bound in seconds; late told from lost",
        wall_clock=True,
        early_timeout=0.05,
        why_no_repair="the bound in seconds is printed as advice: it has too many schedules to be proved",
    ),
)

MODULES: dict[str, str] = {e.protocol: f"{__name__}.{e.module}" for e in ENTRIES}
"""Module of each protocol of the catalogue, by the protocol's name."""


def entry(id: str) -> Entry:
    """The entry of a report, by its id or by the name of its protocol.

    Raises:
        UnknownNameError: There is none; the hint gives the nearest.
    """
    for found in ENTRIES:
        if id in (found.id, found.protocol):
            return found
    known = [e.id for e in ENTRIES]
    raise UnknownNameError("catalogue entry", id, known, hint=f"the catalogue has {', '.join(known)}")
