"""What a process tells of itself: its log and its trace. Importing it sets up nothing; it knows no role."""
