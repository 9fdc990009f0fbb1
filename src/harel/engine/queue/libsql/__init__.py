"""The queue over libSQL, which speaks SQLite's dialect: what is its own, without I/O."""
