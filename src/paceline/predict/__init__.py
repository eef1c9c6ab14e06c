"""Predictions: a saved model, or the model of a running job, answers requests.

`card` says what a model file is, `module` builds a model, `runners` compute it, `service` queues and batches requests,
`http` is the Open Inference Protocol, `follow` reads the versions of a running job.
"""
