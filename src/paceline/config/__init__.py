"""The dials and the job spec: frozen, checked when made. `load` alone reads the environment."""
