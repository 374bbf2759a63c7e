"""Read the machine code of the kernels back and check what the protocol and its speed need of it, per AMD architecture.

Facts about the instructions are those of LLVM's "User Guide for AMDGPU Backend", memory model tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.errors import UnknownNameError
from lab.kernels import isa_order, isa_speed
from lab.kernels.build import EVERY_KERNEL, HIP, build
from lab.kernels.isa_code import functions
from lab.kernels.isa_rules import RULES

TYPES = ("fp32", "fp16", "bf16")
ARCHITECTURES = tuple(RULES)


@dataclass
class Row:
    """One kernel on one architecture, the worst of its element types.

    Attributes:
        checks: name -> "pass", or what was found instead.
        vgprs, sgprs: registers of a lane and of a wave.
        lds: bytes of block-shared memory.
        lane_spills: scalar registers kept in a vector register's lanes; they cost no memory access.
        loads_in_flight: the loads of a vector that are issued before the first of them is waited for, where fewest.
        scalar_trips: scalar loads that wait for each other, from the entry to the first push.
        poll_spills: spills of either kind on the way from a failed poll to the next one.
        drains: waits that leave no store to a peer in flight in the loops over vectors, for each vector, where most.
    """

    kernel: str
    architecture: str
    compiler: str
    checks: dict[str, str] = field(default_factory=dict)
    vgprs: int = 0
    sgprs: int = 0
    lds: int = 0
    lane_spills: int = 0
    loads_in_flight: int = 1 << 30
    scalar_trips: int = 0
    poll_spills: int = 0
    drains: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(found == "pass" for found in self.checks.values())


def read(kernel: str, architecture: str, assembly: str, compiler: str = "") -> Row:
    """Check one kernel's assembly. One that waits for packets, and so for no flag, is checked for those instead."""
    rules = RULES[architecture]
    row = Row(kernel, architecture, compiler)
    found = list(functions(assembly))
    if not found:
        row.checks["code"] = "no kernel in the assembly"
    for name, code, numbers in found:
        checks = {"spills": isa_order.check_spills(numbers, code)}
        packets = isa_order.packets_polled(code)
        checks["release"] = isa_order.check_release(code, rules)  # without flags, of its record's last word
        if not packets:
            checks["drain"] = isa_order.check_drain(code, rules)
            checks["acquire"] = isa_order.check_acquire(code, rules)
        checks["poll"] = isa_order.check_poll(code, rules, packets)
        checks["payload"] = isa_order.check_payload(code, rules, packets > 0)
        checks["16-byte"] = isa_order.check_wide(code)
        checks["rounding"] = isa_order.check_rounding(numbers, code, rules, name)
        measured = isa_speed.measure(code, rules)
        checks |= isa_speed.checks(kernel, measured)
        for check, result in checks.items():
            if row.checks.get(check, "pass") == "pass":
                row.checks[check] = result if result == "pass" else f"{name}: {result}"
        row.vgprs = max(row.vgprs, numbers["vgpr_count"])
        row.sgprs = max(row.sgprs, numbers["sgpr_count"])
        row.lds = max(row.lds, numbers["group_segment_fixed_size"])
        row.lane_spills = max(row.lane_spills, numbers["sgpr_spill_count"])
        row.loads_in_flight = min(row.loads_in_flight, measured.loads_in_flight)
        row.scalar_trips = max(row.scalar_trips, measured.scalar_trips)
        row.poll_spills = max(row.poll_spills, measured.poll_spills)
        row.drains = max(row.drains, measured.drains)
    return row


def survey(
    *,
    world: int = 4,
    kernels: Sequence[str] = EVERY_KERNEL,
    architectures: Sequence[str] = ARCHITECTURES,
    source: Path = HIP,
    cache: Path | None = None,
) -> list[Row]:
    """Compile each kernel for each architecture and check it.

    Raises:
        LabError: no compiler for AMD, an unknown name, or source that does not compile.
    """
    rows = []
    for kernel in kernels:
        for architecture in architectures:
            if architecture not in RULES:
                raise UnknownNameError("architecture", architecture, RULES)
            made = build(architecture, world=world, kernels=[kernel], output=".s", source=source, cache=cache)
            rows.append(read(kernel, architecture, made.path.read_text(), made.compiler))
    return rows
