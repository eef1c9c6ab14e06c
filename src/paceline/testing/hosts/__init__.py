"""Runs on several hosts that are network namespaces of this machine, and campaigns that lose, cut and empty hosts."""
