"""Chaos campaigns: real runs under a seeded plan of faults, and checks that nothing was lost.

`plan` and `cuts` are plain data derived from a seed, `injector` and the `*_faults` modules inject faults, `recovery`
decides when the run has recovered, `verify` checks a run that has ended, `campaign` plays the whole plan. A campaign
acts on a run only from outside, by the command line, signals and the network, and sees only the run's status.
"""
