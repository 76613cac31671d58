"""What a run leaves: its folder, checkpoints, wandb, the display."""
