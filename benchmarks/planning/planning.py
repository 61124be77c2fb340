"""Seconds of the exact plan of deep nets, and greedy's distance from it: `python -m benchmarks planning --help`.

Nets are random: layer sizes over four decades, backward times in proportion to them up to noise, links from 10 Mbit/s
to 10 Gbit/s, start-up times from 10 us to 10 ms.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from taihu.core.planner.merging import TIE, merge_exact, merge_greedy
from taihu.core.planner.profile import Compression, LayerCost, LinearCost, LinkCost, Profile
from taihu.core.planner.timeline import simulate, step_costs
from taihu.core.traits.methods import DLGS, LAGS, NONE, Method
from taihu.kernels import group_search

__all__ = ["random_profile"]


def random_profile(rng: np.random.Generator, layers: int) -> Profile:
    """A net on three workers and one server."""
    sizes = np.rint(10 ** rng.uniform(2, 6, layers)).astype(int)
    backward = sizes * 10 ** rng.uniform(-9, -7) * rng.uniform(0.3, 3, layers) + 1e-5
    per_byte = 3 * 8 / 10 ** rng.uniform(7, 10)
    costs = tuple(LayerCost(str(i), int(n), float(b)) for i, (n, b) in enumerate(zip(sizes, backward, strict=True)))
    link = LinkCost(10 ** rng.uniform(-5, -2), per_byte, per_byte)
    return Profile(costs, float(backward.sum() / 2), LinearCost(1e-5, 1e-9), LinearCost(3e-5, 5e-9), link, 3, 1)


def main() -> None:
    """Plan the nets, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--nets", type=int, default=300)
    parser.add_argument("--slack", type=float, default=TIE, help="share that fewer groups may cost; auto: 0.02")
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    group_search.warm_up()
    methods: tuple[Method, ...] = (NONE, LAGS, DLGS)
    seconds, excess = [], []
    for number in range(options.nets):
        profile = random_profile(rng, options.layers)
        compression = Compression(methods[number % 3], float(10 ** rng.uniform(-3, -1)))
        start = time.perf_counter()
        costs = step_costs(profile, compression)
        groups = merge_exact(costs, options.slack)
        seconds.append(time.perf_counter() - start)
        excess.append(simulate(costs, merge_greedy(costs)).seconds / simulate(costs, groups).seconds - 1)
    median, most, worst = np.quantile(seconds, [0.5, 0.99, 1.0]) * 1e3
    times = f"median {median:.1f} ms, 99 % {most:.1f} ms, {worst:.1f} ms at most"
    print(f"{options.nets} nets of {options.layers} layers: {times}")
    print(f"greedy: longer by {np.mean(excess):.2%} on average, {max(excess):.2%} at most")


if __name__ == "__main__":
    main()
