"""Pictures and pages. Nothing below `lab.repro` and `lab.cli` imports them."""
