"""Tools for tests of Paceline and of programs that use it: planned faults, and chaos campaigns.

No role imports this package. `faulty` re-exports the faulty transport; `chaos` injects faults into real runs.
"""
