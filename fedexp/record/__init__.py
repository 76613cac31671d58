"""How a run is recorded: its folder, checkpoints, trackers, the display."""
