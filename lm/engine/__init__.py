"""The engine: what a model of this process computes for requests, in as few forward passes as it can.

Its parts are prompts that are remembered (`cache`), rows side by side and trees of continuations
(`passes`; callers ask its `computed`), and guesses of what follows (`ngrams`). `reference` computes the
same in the plainest way; ``tests/lm/test_engine.py`` compares the two.
"""
