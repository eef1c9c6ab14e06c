"""The tables of a coordinator: the facts that its machines read.

A table holds facts and answers questions about them; it sends nothing and gets no events. Every machine reads the
tables, and one machine changes each of them (`core/coordinator/all_tables.py` names it). Decisions live in the
machines, one folder up.
"""
