"""The simulator: machine, memory models, race check, exploration, timing, and the kernels' arithmetic."""

from lab.sim.machine.compiled import keep_compiled_code

keep_compiled_code()
