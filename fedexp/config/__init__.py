"""The config: its schema and checks, how it is composed, and how runs are named by it."""
