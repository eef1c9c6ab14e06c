"""A sampler: it runs the script of the job up to `job.batches`, and prepares there the batches of others' leases.

Nothing in it is durable or unique: any sampler can replace any other, and a worker that gets no answer prepares the
batch itself. This package knows batches and their slots; it knows neither the model nor a commit.
"""
