"""Benchmarks of Vitrine: beside the same work done by hand in psql, and beside another tree of Vitrine itself."""
