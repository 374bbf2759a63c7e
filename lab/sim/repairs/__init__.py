"""Candidates for repairs, by what they change; `lab.sim.repair` tries them."""
