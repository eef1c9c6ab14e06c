"""The coordinator: an I/O shell around the core, and its durable log. No torch here."""
