"""The program changed: mutants, slack, repairs, and whether what comes out still holds."""
