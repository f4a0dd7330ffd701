"""Every table and figure of both papers: definitions (data), the jobs that they need, and the runner."""
