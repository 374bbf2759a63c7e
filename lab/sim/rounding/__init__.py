"""Rounding: every mode of fp32 to bf16 and fp16, what it does to a residual stream, and which mode a build has."""

from lab.sim.rounding.convert import *  # noqa: F403  the public face: `from lab.sim.rounding import to_bf16`
from lab.sim.rounding.convert import __all__ as __all__
