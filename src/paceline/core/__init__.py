"""Pure decisions: leases, windows, seals, commits, placement, membership. No I/O, no clock, no torch."""
