"""Decisions of a predictor: signatures, admission of requests, batches, and how a reader follows a job.

Pure: no clock, socket, thread or torch. `paceline.predict` carries them out.
"""
