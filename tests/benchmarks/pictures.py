"""Modes of pictures with their bounds, beside the cuts of PyMaxflow.

    python tests/benchmarks/pictures.py [--peer PYTHON] [--side 128] [--seconds 5 10]

PYTHON is the interpreter of an environment with PyMaxflow and scikit-image, whose pictures are
used: without it they are generated, and nothing is compared. Three jobs: a noisy photograph cut
into dark and bright (binary), the same cleaned in 16 levels of grey, and the distances in a stereo
pair. Costs of neighbours are truncated absolute differences. PyMaxflow solves the first by a
minimum cut and the others by alpha-expansion. Energies are minus scores; seconds are CPU seconds
of one thread, clocks of budgets included.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
LEVELS, SHIFTS = 16, 24


def generated(side: int) -> tuple[Array, Array, Array]:
    """A picture of discs, and a left and a right view of textured discs at different distances."""
    random = np.random.default_rng(0)
    rows, columns = np.indices((side, side))
    texture = random.random((side, 2 * side)).astype(np.float32)
    picture = np.full((side, side), 0.3, np.float32)
    left, right = texture[:, :side].copy(), texture[:, :side].copy()
    for _ in range(8):
        centre, radius = random.random(2) * side, (0.1 + 0.15 * random.random()) * side
        inside = (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2
        picture[inside] = random.random()
        shift = int(random.integers(0, max(side // 8, 2)))
        look = texture[:, side:]
        left[inside] = look[inside]
        moved = np.zeros_like(inside)
        moved[:, : side - shift] = inside[:, shift:]
        right[moved] = np.roll(look, -shift, 1)[moved]
    return picture, left, right


def jobs(picture: Array, left: Array, right: Array) -> dict[str, tuple[Array, Array]]:
    """Of each job the costs (height, width, labels), and those of a pair of neighbours."""
    random = np.random.default_rng(1)
    noisy = picture + 0.2 * random.standard_normal(picture.shape).astype(np.float32)
    bright = np.stack([(noisy - 0.25) ** 2, (noisy - 0.75) ** 2], -1) / (2 * 0.2**2)
    greys = (np.arange(LEVELS, dtype=np.float32) + 0.5) / LEVELS
    grey = (noisy[..., None] - greys) ** 2 / (2 * 0.2**2)
    shifted = np.full((*left.shape, SHIFTS), 0.3, np.float32)
    for shift in range(min(SHIFTS, left.shape[1])):
        width = left.shape[1] - shift
        gap = np.abs(left[:, shift:] - right[:, :width])
        shifted[:, shift:, shift] = np.minimum(gap, 0.3)

    def truncated(labels: int, each: float, most: float) -> Array:
        number = np.arange(labels, dtype=np.float32)
        return np.minimum(each * np.abs(number[:, None] - number), most).astype(np.float32)

    return {
        "binary": (bright.astype(np.float32), truncated(2, 2.0, 2.0)),
        "grey": (grey.astype(np.float32), truncated(LEVELS, 0.6, 3.0)),
        "stereo": (20.0 * shifted, truncated(SHIFTS, 0.5, 1.5)),
    }


def energy(costs: Array, ties: Array, states: NDArray[np.int64]) -> float:
    """Summed costs of a labelling."""
    own = np.take_along_axis(costs, states[..., None], 2).astype(np.float64).sum()
    down = ties[states[1:], states[:-1]].astype(np.float64).sum()
    return float(own + down + ties[states[:, 1:], states[:, :-1]].astype(np.float64).sum())


def ours(costs: Array, ties: Array, seconds: float) -> str:
    """Energy, bound and seconds of `Auto`."""
    import torch

    import rdpgraph as rg

    pixel = rg.VariableArray("pixel", costs.shape[:2], costs.shape[2])
    smooth = rg.Table.from_logs(torch.from_numpy(-ties))
    begin = time.process_time()
    graph = rg.FactorGraph([
        rg.FactorBlock((pixel,), rg.Table.from_logs(torch.from_numpy(-costs))),
        rg.FactorBlock((pixel[1:], pixel[:-1]), smooth),
        rg.FactorBlock((pixel[:, 1:], pixel[:, :-1]), smooth),
    ])  # fmt: skip
    posterior = rg.infer(graph, scheduler=rg.Auto(seconds=seconds))
    states = posterior.mode()[pixel].numpy()
    spent = time.process_time() - begin
    found, bound = energy(costs, ties, states), -float(posterior.mode_bound())
    proved = "proved" if bool(posterior.mode_is_optimal()) else "not proved"
    return f"energy {found:,.1f}  bound {bound:,.1f} ({proved})  {spent:.2f} s"


def child_peer(source: str, target: str) -> None:
    """Labellings by PyMaxflow; runs in its environment."""
    import maxflow
    from maxflow import fastmin

    stored, found, seconds = np.load(source), {}, {}
    for name in {key.split("_")[0] for key in stored.files}:
        costs, ties = stored[f"{name}_costs"].astype(float), stored[f"{name}_ties"].astype(float)
        begin = time.process_time()
        if costs.shape[2] == 2:
            graph = maxflow.Graph[float]()
            nodes = graph.add_grid_nodes(costs.shape[:2])
            graph.add_grid_edges(nodes, ties[0, 1], symmetric=True)
            graph.add_grid_tedges(nodes, costs[..., 1], costs[..., 0])
            graph.maxflow()
            states = graph.get_grid_segments(nodes).astype(np.int64)
        else:
            states = fastmin.aexpansion_grid(costs, ties)
        found[name], seconds[name] = states, time.process_time() - begin
    np.savez(target, **found)
    print(json.dumps(seconds))


def child_pictures(target: str, side: int) -> None:
    """The camera man and the motorcycles of scikit-image, resized; runs in its environment."""
    from skimage import color, data, transform

    camera = transform.resize(data.camera() / 255.0, (side, side), anti_aliasing=True)
    pair = []
    for view in data.stereo_motorcycle()[:2]:
        grey = color.rgb2gray(view)
        wide = int(side * grey.shape[1] / grey.shape[0])
        pair.append(transform.resize(grey, (side, wide), anti_aliasing=True))
    np.savez(target, picture=camera, left=pair[0], right=pair[1])


def main() -> None:
    """All jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer")
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--seconds", type=float, nargs="+", default=(5.0, 10.0))
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    peer = options.peer
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "pictures.npz"
        if peer:
            asked = [peer, __file__, "--child-pictures", str(file), str(options.side)]
            subprocess.run(asked, check=True)
            stored = np.load(file)
            pictures = tuple(
                stored[name].astype(np.float32) for name in ("picture", "left", "right")
            )
        else:
            pictures = generated(options.side)
        every = jobs(*pictures)
        for name, (costs, ties) in every.items():
            height, width, labels = costs.shape
            print(f"{name}: {height} x {width}, {labels} labels")
            for seconds in options.seconds:
                print(f"  Auto({seconds:g} s)  {ours(costs, ties, seconds)}", flush=True)
        if peer:
            source, target = pathlib.Path(folder) / "model.npz", pathlib.Path(folder) / "found.npz"
            arrays = {f"{name}_costs": costs for name, (costs, _) in every.items()}
            arrays |= {f"{name}_ties": ties for name, (_, ties) in every.items()}
            np.savez(source, **arrays)  # pyright: ignore
            asked = [peer, __file__, "--child-peer", str(source), str(target)]
            done = subprocess.run(asked, capture_output=True, text=True, check=True)
            spent, found = json.loads(done.stdout.splitlines()[-1]), np.load(target)
            for name, (costs, ties) in every.items():
                value = energy(costs, ties, found[name].astype(np.int64))
                print(f"  PyMaxflow, {name}: energy {value:,.1f}  {spent[name]:.2f} s")


if __name__ == "__main__":
    if "--child-peer" in sys.argv:
        child_peer(*sys.argv[2:])
    elif "--child-pictures" in sys.argv:
        child_pictures(sys.argv[2], int(sys.argv[3]))
    else:
        from rdpgraph.plan import clock

        before, clock.perf_counter = clock.perf_counter, time.process_time
        try:
            main()
        finally:
            clock.perf_counter = before
