"""Where roles run and who restarts them."""
