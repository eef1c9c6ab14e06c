"""Chaos campaigns: real runs under a seeded plan of faults, and checks that nothing was lost.

`plan` and `cuts` are plain data from a seed, `injector` and the `*_faults` modules inject, `recovery` decides when the
run has recovered, `verify` checks a run that has ended, `campaign` plays the whole plan. Everything is done from
outside, by the command line, signals and the status: nothing here reaches into a role.
"""
