"""The data of a phase: where samples come from, and how the batch of a slot is made.

Two seams: `source.Source` (samples by position) and `batch_source.BatchSource` (the batch of a slot). What lives here
knows slots and seeds; it knows neither the model nor the coordinator.
"""
