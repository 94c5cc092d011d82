"""Benchmarks for airspeed velocity: one file per feature, costly things in ``setup``, one expression timed."""
