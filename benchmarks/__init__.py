"""Experiments, speed benchmarks, reports, and their recorded results."""
