"""The log and the trace of a process. Importing this package sets up nothing, and it does not depend on any role."""
