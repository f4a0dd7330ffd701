"""A tree of imagined futures, searched by upper confidence bounds (UCT; METHODS.md 3, RAP)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..worldmodel import Imagined

__all__ = ["Node", "back_up", "best_child", "descend", "most_promising", "uct"]


@dataclass(slots=True, eq=False)
class Node:
    """A state in the tree, with the action that leads to it.

    Attributes:
        action: The action; empty at the root.
        imagined: What the world model expects of it; None at the root.
        reward: The reward of the action.
        hint: The part of the reward by which unvisited nodes are ordered.
        end: Where the future ends here, what it is worth from here on; else None.
        visits: How often a path went through here.
        value: The mean return of those paths, from this action on.
        children: What may follow; None where nobody looked yet.
    """

    action: str = ""
    imagined: Imagined | None = None
    reward: float = 0.0
    hint: float = 0.0
    end: float | None = None
    visits: int = 0
    value: float = 0.0
    children: list[Node] | None = None


def uct(parent_visits: int, child: Node, weight: float) -> float:
    """Return ``Q + weight * sqrt(ln N(parent) / N(child))``; infinite where there was no visit.

    Example:
        >>> round(uct(4, Node(visits=1, value=0.5), 1.4), 4)
        2.1484
    """
    if child.visits == 0:
        return math.inf
    return child.value + weight * math.sqrt(math.log(max(parent_visits, 1)) / child.visits)


def most_promising(children: Sequence[Node]) -> Node:
    """Return the child with the best hint, the first of equals."""
    return max(children, key=lambda child: child.hint)


def descend(root: Node, weight: float, depth: int) -> list[Node]:
    """Return a path from below the root to a leaf, or to `depth`.

    At each node an unvisited child comes first, the most promising of them; else the child with the
    greatest `uct`, the first of equals.

    Example:
        >>> root = Node(visits=2, children=[Node("a", visits=1), Node("b", visits=1, value=0.1)])
        >>> [node.action for node in descend(root, 1.4, 6)]
        ['b']
    """
    path: list[Node] = []
    node = root
    while len(path) < depth and node.end is None and node.children:
        fresh = [child for child in node.children if child.visits == 0]
        if fresh:
            chosen = most_promising(fresh)
        else:
            above = node.visits
            chosen = max(node.children, key=lambda child: uct(above, child, weight))
        path.append(chosen)
        node = chosen
    return path


def back_up(root: Node, path: Sequence[Node], discount: float) -> float:
    """Enter a path's return into its nodes' means, and return that of the whole path.

    Example:
        >>> root, a, b = Node(), Node("a", reward=1.0), Node("b", reward=0.5, end=2.0)
        >>> back_up(root, [a, b], 1.0), a.value, b.value, root.visits
        (3.5, 3.5, 2.5, 1)
    """
    total = path[-1].end or 0.0 if path else 0.0
    for node in reversed(path):
        total = node.reward + discount * total
        node.visits += 1
        node.value += (total - node.value) / node.visits
    root.visits += 1
    root.value += (total - root.value) / root.visits
    return total


def best_child(root: Node) -> Node | None:
    """Return the child with the most visits, then the best value, the first of equals.

    Example:
        >>> kept = [Node("a", visits=2, value=0.1), Node("b", visits=2, value=0.3), Node("c")]
        >>> best_child(Node(children=kept)).action
        'b'
    """
    if not root.children:
        return None
    return max(root.children, key=lambda child: (child.visits, child.value))
