"""Rollouts on search QA whose rewards are F1, or whose search engine is a language model (ZeroSearch)."""
