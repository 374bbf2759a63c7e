"""How fast the simulator is, beside peers in the same run."""
