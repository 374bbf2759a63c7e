"""All executions: the exhaustive search under each memory model."""
