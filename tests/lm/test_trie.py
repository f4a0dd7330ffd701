from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from comap.lm.trie import TokenTrie, telling_apart

SEQUENCES = st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=12)


@given(SEQUENCES)
def test_every_sequence_is_read_off_its_path(sequences: list[list[int]]) -> None:
    trie = TokenTrie(sequences)
    for sequence, end in zip(sequences, trie.ends, strict=True):
        assert [trie.tokens[node] for node in trie.path(end)] == sequence
        assert trie.depths[end] == len(sequence)


@given(SEQUENCES)
def test_nodes_are_the_different_beginnings_and_come_after_their_parents(
    sequences: list[list[int]],
) -> None:
    trie = TokenTrie(sequences)
    beginnings = {tuple(s[:n]) for s in sequences for n in range(len(s) + 1)} | {()}
    assert len(trie) == len(beginnings)
    assert all(parent < node for node, parent in enumerate(trie.parents))
    assert set(trie.inner()) == {parent for parent in trie.parents if parent >= 0}


@given(SEQUENCES)
def test_sequences_are_told_apart(sequences: list[list[int]]) -> None:
    short = telling_apart(sequences)
    for sequence, found in zip(sequences, short, strict=True):
        assert tuple(sequence[: len(found)]) == found
        others = [tuple(other) for other in sequences if other != sequence]
        if len(found) < len(sequence):
            assert not any(other[: len(found)] == found for other in others)
        if found:
            assert any(other[: len(found) - 1] == found[:-1] for other in others) or len(found) == 1
