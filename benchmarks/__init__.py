"""Measurements: one command per question, one JSON line at the end. See docs/benchmarks.md."""
