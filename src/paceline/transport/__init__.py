"""One seam between roles, and its lanes: `zmq` between processes, `inproc` within one."""
