"""The two-shot that the project started from, and the same repaired."""
