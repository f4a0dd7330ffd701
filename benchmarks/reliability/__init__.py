"""Faults and load: what ``comap bench reliability`` does to comap, a part a module."""
