"""What can be split: one file each."""
