"""The lane between hosts: a TCP connection whose every byte is sealed with AES-GCM.

`paceline.transport.streams` connects two processes that have proven themselves on an encrypted ZeroMQ connection, and
`channel` seals and opens what it sends and receives.
"""
