"""Campaigns: real runs under a seeded plan of faults, and the proof that nothing was lost."""
