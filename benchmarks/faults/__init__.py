"""Real faults with known causes, diagnosed while they last: see docs/benchmark.md."""
