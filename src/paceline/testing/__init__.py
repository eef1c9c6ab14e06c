"""What tests of Paceline, and of programs that use it, are made with: planned faults."""
