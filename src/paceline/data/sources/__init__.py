"""The sources that come with Paceline: each reads samples by position, and follows from its files alone."""
