"""Longstep: the whole life of a long-horizon agent model in one codebase. Start with README.md."""
