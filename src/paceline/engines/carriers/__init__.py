"""Carriers: they bring the agents of a run to its hosts, by ssh or by the engine of a cluster."""
