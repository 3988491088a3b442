"""Where a search stopped, so that another can go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from surebound.network.arrays import alike
from surebound.problem import Region
from surebound.verify.node import Nodes


@dataclass(frozen=True, eq=False)
class Begun:
    """What a search over the boxes of regions has left open. All other parts of these boxes are proved."""

    regions: Sequence[Region]
    nodes: Nodes  # `region` is an index into the regions
    subproblems: int  # bounded so far

    def among(self, regions: Sequence[Region]) -> Begun | None:
        """What is open of some of the regions; None if it was not about all of them."""
        place = {id(region): i for i, region in enumerate(regions)}
        if not place.keys() <= {id(region) for region in self.regions}:
            return None
        where = np.array([place.get(id(region), -1) for region in self.regions])
        region = alike(where, self.nodes.region)[self.nodes.region]
        nodes = replace(self.nodes, region=region)[region >= 0]
        return Begun(regions, nodes, self.subproblems - len(self.regions) + len(regions))

    def tensors(self, device: str = "cpu") -> Begun:
        """The same over torch's tensors on a device."""
        return replace(self, nodes=self.nodes.tensors(device))
