"""Names: rounding modes, NaN rules, and what the conversion codes of AITER, OPUS and CK really do.

The enum uses the names of IEEE 754 and gfloat (`TiesToEven`); its values are the short names of this lab (`RNE`).

Overflow follows from the mode, never from a flag: the infinity of the format stands for the next power of two
above the largest finite number, and a mode may round to it or not (IEEE 754-2019, 7.4). An infinite input stays
infinite in every mode, a zero keeps its sign, subnormal results are produced (nothing is flushed).

| mode | overflow of a finite input |
|---|---|
| RNE, RNA | infinity from half a step above the largest finite number |
| RTZ, RTO | largest finite number (its significand is odd) |
| RU, RD | infinity on the side it rounds to, largest finite number on the other |
| RAZ | infinity |
| SR, SRC | infinity with the probability of the step; always from the next power of two on |
"""

from dataclasses import dataclass
from enum import Enum

from lab.errors import LabError, UnknownNameError


class RoundMode(Enum):
    """How the fp32 value is rounded to a neighbour in bf16 or fp16."""

    TiesToEven = "RNE"
    TowardZero = "RTZ"
    TiesToAway = "RNA"
    TowardPositive = "RU"
    TowardNegative = "RD"
    AwayFromZero = "RAZ"
    ToOdd = "RTO"
    Stochastic = "SR"  # plain: up if floor(fraction * 2^k) + random >= 2^k; gfloat: StochasticFastest
    StochasticCentred = "SRC"  # half a random step added, no bias; gfloat: StochasticFast
    TiesToEvenViaFp16 = "RNE_VIA_FP16"  # fp32 -> fp16 -> bf16, RNE twice (vllm#55345)
    LowHalf = "LOW16"  # no rounding at all: the low 16 bits of the fp32 word (OPUS code 1)

    @property
    def words(self) -> str:
        """The mode spelt out, as a person says it."""
        return _WORDS[self]

    @property
    def is_stochastic(self) -> bool:
        """True for SR and SRC, which take random bits."""
        return self in (RoundMode.Stochastic, RoundMode.StochasticCentred)

    @property
    def bf16_only(self) -> bool:
        """True for the two modes that exist only as defects of bf16 kernels."""
        return self in (RoundMode.TiesToEvenViaFp16, RoundMode.LowHalf)

    @classmethod
    def parse(cls, name: "str | RoundMode") -> "RoundMode":
        """Return the mode of that short or IEEE/gfloat name, whatever its case.

        Raises:
            UnknownNameError: there is no such mode; the hint gives the nearest names.
        """
        if isinstance(name, cls):
            return name
        table = {mode.value.casefold(): mode for mode in cls}
        table |= {mode.name.casefold(): mode for mode in cls}
        table |= {f"round{mode.name}".casefold(): mode for mode in cls}  # IEEE 754: roundTiesToEven
        table |= {"rta": cls.TiesToAway, "truncate": cls.TowardZero}
        folded = str(name).strip().casefold().replace("-", "_")
        if folded not in table:
            known = [mode.value for mode in cls] + [mode.name for mode in cls]
            raise UnknownNameError("rounding mode", str(name), known, hint=f"known: {', '.join(known)}")
        return table[folded]


_WORDS = {
    RoundMode.TiesToEven: "to nearest, ties to even",
    RoundMode.TowardZero: "toward zero",
    RoundMode.TiesToAway: "to nearest, ties away from zero",
    RoundMode.TowardPositive: "toward +inf",
    RoundMode.TowardNegative: "toward -inf",
    RoundMode.AwayFromZero: "away from zero",
    RoundMode.ToOdd: "to odd",
    RoundMode.Stochastic: "stochastic",
    RoundMode.StochasticCentred: "stochastic, centred",
    RoundMode.TiesToEvenViaFp16: "to nearest even, by way of fp16",
    RoundMode.LowHalf: "the low half of the word",
}

#: The modes that are a function of the input alone and exist for both formats.
DETERMINISTIC_MODES = (
    RoundMode.TiesToEven,
    RoundMode.TowardZero,
    RoundMode.TiesToAway,
    RoundMode.TowardPositive,
    RoundMode.TowardNegative,
    RoundMode.AwayFromZero,
    RoundMode.ToOdd,
)


class NanRule(Enum):
    """Which bits a NaN input becomes. Libraries differ here, so it is stated apart from the mode."""

    #: Sign and leading payload bits kept, quiet bit set: IEEE 754's advice and the default of this lab.
    QUIET = "quiet"
    # The others are for bf16, CANONICAL for both formats.
    #: Upper 16 bits kept; the lowest of them set if a payload bit was cut off, so a signalling NaN stays one (CK).
    KEEP_SIGNALLING = "keep_signalling"
    #: Every NaN becomes the positive quiet NaN without payload, 0x7fc0 or 0x7e00: the lab's kernels.
    CANONICAL = "canonical"
    #: Every NaN becomes 0x7fff, the sign is lost (OPUS code 3).
    ALL_ONES = "all_ones"
    #: No guard: the mode's integer arithmetic runs over the NaN, which may become infinity or zero. RNE, RTZ, RNA.
    UNGUARDED = "unguarded"


#: Modes whose arithmetic without a guard is found in kernels.
UNGUARDED_MODES = (RoundMode.TiesToEven, RoundMode.TowardZero, RoundMode.TiesToAway)


@dataclass(frozen=True)
class Conversion:
    """An fp32 -> bf16 conversion as a library has it: a mode with a NaN rule.

    Attributes:
        name: how the lab calls it.
        mode: the rounding mode; None where the library's source has no branch, so that no conversion exists.
        nan: what happens to NaN inputs.
        note: what its documentation says, and what is so.
    """

    name: str
    mode: RoundMode | None
    nan: NanRule
    note: str


#: `OPUS_FP32_to_BF16_DEFAULT` of AITER (csrc/include/opus/opus.hpp). Targets with a hardware conversion
#: (gfx950, gfx12) ignore the code and round to nearest even.
AITER_CODES: dict[int, Conversion] = {
    0: Conversion("aiter-0", RoundMode.TiesToEven, NanRule.KEEP_SIGNALLING, "nearest even"),
    1: Conversion(
        "aiter-1",
        RoundMode.LowHalf,
        NanRule.KEEP_SIGNALLING,
        "documented as truncation that keeps NaN; the shift binds tighter than the or, so it returns the low "
        "16 bits (1.5 becomes 0x0000)",
    ),
    2: Conversion(
        "aiter-2",
        RoundMode.TowardZero,
        NanRule.UNGUARDED,
        "truncation, the default; 131,070 NaN inputs become infinite",
    ),
    3: Conversion("aiter-3", RoundMode.TiesToEven, NanRule.ALL_ONES, "nearest even in assembly; NaN is 0x7fff"),
    4: Conversion(
        "aiter-4", None, NanRule.UNGUARDED, "documented as half away from zero; the source has no branch for it"
    ),
}

#: `CK_TILE_FLOAT_TO_BFLOAT16_DEFAULT` of Composable Kernel (ck_tile/core/numeric/bfloat16.hpp).
CK_CODES: dict[int, Conversion] = {
    0: Conversion("ck-0", RoundMode.TiesToEven, NanRule.KEEP_SIGNALLING, "standard: nearest even"),
    1: Conversion("ck-1", RoundMode.TowardZero, NanRule.KEEP_SIGNALLING, "truncate_with_nan"),
    2: Conversion("ck-2", RoundMode.TowardZero, NanRule.UNGUARDED, "truncate"),
}


def conversion(name: str) -> Conversion:
    """Return a conversion by name: a mode ("RNE", "TowardZero"), "aiter-2", "opus-2" or "ck-1".

    Raises:
        UnknownNameError: neither a mode nor a code.
        LabError: a code that is documented but has no branch in the source (aiter-4).
    """
    family, _, code = name.strip().casefold().replace("_", "-").replace(":", "-").partition("-")
    tables = {"aiter": AITER_CODES, "opus": AITER_CODES, "ck": CK_CODES}
    if family not in tables:
        mode = RoundMode.parse(name)
        return Conversion(mode.value, mode, NanRule.QUIET, "the lab's own")
    table = tables[family]
    if not code.isdecimal() or int(code) not in table:
        raise UnknownNameError("conversion code", name, [f"{family}-{number}" for number in table])
    found = table[int(code)]
    if found.mode is None:
        raise LabError("this code has no conversion", value=name, hint=found.note)
    return found
