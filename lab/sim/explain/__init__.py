"""What a person is told: failures, hangs, wrong values, witnesses, replays, the report."""
