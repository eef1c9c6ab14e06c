"""The dials of a job and the configuration of a role: frozen, checked when made. Only `load` reads the environment."""
