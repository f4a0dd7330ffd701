"""CoMap's training: policy and world model learn from each other (arXiv 2606.02372)."""
