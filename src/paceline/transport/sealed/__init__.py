"""The lane between hosts: a TCP connection whose every byte is sealed with AES-GCM.

`listener` and `dialing` connect two processes that have proven themselves on an encrypted ZeroMQ connection, `channel`
seals and opens what `paceline.transport.streams` sends and receives.
"""
