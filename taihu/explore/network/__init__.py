"""The network in memory: gRPC and TCP between simulated processes, and what goes wrong there."""

from taihu.explore.network.modules import modules
from taihu.explore.network.network import Network

__all__ = ["Network", "modules"]
