"""The timing model: programs run in time, with the parameters of a machine."""
