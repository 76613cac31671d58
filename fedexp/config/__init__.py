"""The config: its schema and checks, how it is composed, what names a run."""
