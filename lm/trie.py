"""Sequences of tokens that share their beginnings, as a tree.

The tree serves three purposes: decoding restricted to choices walks down it, scoring many
completions of one prompt reads all of it in one forward pass, and next-word probabilities follow it
as far as words begin alike.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["TokenTrie", "telling_apart"]


class TokenTrie:
    """A tree of tokens; node 0 is its root, and every node comes after its parent.

    Attributes:
        tokens: The token of each node; -1 for the root.
        parents: The parent of each node; -1 for the root.
        depths: The number of tokens on the way from the root to each node.
        children: For each node its children by token.
        ends: For each sequence the node where it ends.

    Args:
        sequences: Sequences of token ids; one may be empty, the beginning of another, or another
            once more.

    Example:
        >>> trie = TokenTrie([(7, 8), (7, 9), (7,)])
        >>> len(trie), trie.path(trie.ends[1]), trie.ends[2]
        (4, [1, 3], 1)
    """

    __slots__ = ("children", "depths", "ends", "parents", "tokens")

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.tokens = [-1]
        self.parents = [-1]
        self.depths = [0]
        self.children: list[dict[int, int]] = [{}]
        self.ends = [self._add(sequence) for sequence in sequences]

    def __len__(self) -> int:
        return len(self.tokens)

    def _add(self, sequence: Sequence[int]) -> int:
        node = 0
        for token in sequence:
            child = self.children[node].get(token)
            if child is None:
                child = self.children[node][token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1)
                self.children.append({})
            node = child
        return node

    def path(self, node: int) -> list[int]:
        """Return the nodes from below the root to `node`, that one included."""
        nodes = []
        while node > 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def inner(self) -> list[int]:
        """Return the nodes that have children, parents first.

        Example:
            >>> TokenTrie([(7, 8), (9,)]).inner()
            [0, 1]
        """
        return [node for node, children in enumerate(self.children) if children]

    def sharing(self) -> list[int]:
        """Return for each node how many different sequences go through it or end there.

        Example:
            >>> TokenTrie([(7, 8), (7,), (9,), (9,)]).sharing()
            [3, 2, 1, 1]
        """
        counts = [0] * len(self)
        for node in set(self.ends):
            while node >= 0:
                counts[node] += 1
                node = self.parents[node]
        return counts


def telling_apart(sequences: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return for each sequence its tokens up to the first that tells it from all others.

    A sequence that is the beginning of another is returned whole. Equal sequences count as one.

    Example:
        >>> telling_apart([(7, 8, 1), (7, 9, 1), (5, 6), (5,)])
        [(7, 8), (7, 9), (5, 6), (5,)]
    """
    trie = TokenTrie(sequences)
    counts = trie.sharing()
    found = []
    for end in trie.ends:
        nodes = trie.path(end)
        shared = sum(counts[node] > 1 for node in nodes)
        found.append(tuple(trie.tokens[node] for node in nodes[: shared + 1]))
    return found
