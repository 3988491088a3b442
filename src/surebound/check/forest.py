"""Trees of a proof's step, without recursion: every row and every leaf is reached exactly once, or it is refused."""

import numpy as np

from surebound.check.arithmetic import Array, InvalidError


class Forest:
    """Trees over leaves 0, 1, …; a row of `tree` is (what is split, first child, second child), a child < 0 a leaf."""

    def __init__(self, tree: Array, roots: Array) -> None:
        rows, self.leaves = len(tree), len(tree) + len(roots)  # a binary tree has one leaf more than inner nodes
        links = np.concatenate([tree[:, 1:].reshape(-1), roots]).astype(np.int64)
        places = np.where(links < 0, rows - 1 - links, links)  # rows first, then leaves
        if (links >= rows).any() or not np.array_equal(np.sort(places), np.arange(rows + self.leaves)):
            raise InvalidError("a tree does not reach each of its rows and leaves exactly once")
        if ((links[: 2 * rows] >= 0) & (links[: 2 * rows] <= np.repeat(np.arange(rows), 2))).any():
            raise InvalidError("a child of a tree's row does not come after it")
        self.split = tree[:, 0].astype(np.int64)
        # For each row, then each leaf: the row above it, or −1 − its root; and whether it is the second child.
        self._above, self._second = np.empty(len(places), dtype=np.int64), np.empty(len(places), dtype=np.int64)
        self._above[places] = np.concatenate([np.repeat(np.arange(rows), 2), -1 - np.arange(len(roots))])
        self._second[places] = np.concatenate([np.tile([0, 1], rows), np.zeros(len(roots), dtype=np.int64)])

    def paths(self, leaves: Array) -> tuple[Array, Array, Array, Array]:
        """The root of each leaf; and leaf by leaf, from the root, (place in `leaves`, row, second child or not)."""
        place, at = np.arange(len(leaves)), leaves + len(self.split)
        root = np.zeros(len(leaves), dtype=np.int64)
        steps = []
        for _ in range(len(self.split) + 1):  # no path is longer
            if not len(place):
                break
            above = self._above[at]
            root[place[above < 0]] = -1 - above[above < 0]
            place, at, above = place[above >= 0], at[above >= 0], above[above >= 0]
            steps.append((place, above, self._second[at]))
            at = above
        places, rows, second = (np.concatenate(part[::-1]) for part in zip(*steps, strict=True))
        order = np.argsort(places, kind="stable")
        return root, places[order], rows[order], second[order]
