"""What a user writes: definitions, their files, and what they may name."""
