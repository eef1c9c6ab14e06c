"""The data of a phase: where samples come from, and how the batch of a slot is made.

Two protocols can be implemented by others: `source.Source` (samples by position) and `batch_source.BatchSource` (the
batch of a slot). This package knows slots and seeds; it knows neither the model nor the coordinator.
"""
