"""The simulator: machine, memory models, race check, exploration, timing, and the kernels' arithmetic."""
