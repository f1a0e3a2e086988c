"""Benchmarks: see README.md. Not installed with the package."""
