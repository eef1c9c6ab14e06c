"""What samplers and the workers that ask them decide: which slots to prepare, whom to ask, when to help oneself.

Pure: events and a time in, decisions out. A prepared slot is a pure function of (seed, segments, step, slot), so no
decision here can change the result of a job, only its speed.
"""
