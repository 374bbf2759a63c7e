"""Candidates for repairs, by what they change; `lab.sim.change.repair` tries them."""
