"""Every table and figure of both papers: definitions (data), the jobs they need, and the runner."""
