"""EM of a Bayesian network beside pyAgrum's and pgmpy's, in one run on one thread.

    OMP_NUM_THREADS=1 python tests/benchmarks/learning.py [--network alarm.bif] [--rows 10000]

Rows are drawn from the network, and a part of their entries is hidden. pyAgrum fits them as they
are, from the same tables as we do. pgmpy drops rows with gaps: it has a second task, complete rows
without the column of the variable that has most children. Each prints CPU seconds in all and for a
step, and the log-likelihood of the fitted tables, computed by this library. ``--steps`` ends peers
early: ratios are then of the seconds for a step. alarm comes as BIF inside the pgmpy wheel.

``--task memory`` fits rows with gaps, in columns of small integers, and prints the greatest memory
of the process.
"""

import argparse
import importlib.util
import pathlib
import resource
import tempfile
import time

import torch

import rdpgraph as rg
from rdpgraph.learn import BayesianNetwork
from rdpgraph.model.variable import names_of

PRIOR = 1.0
PART = 20_000


def network_named(name):
    if pathlib.Path(name).exists():
        return rg.read(name)
    spec = importlib.util.find_spec("pgmpy")
    if spec is None:
        raise SystemExit(f"{name} is no file, and needs pgmpy, which holds models")
    return rg.read(pathlib.Path(spec.origin).parent / "utils" / "example_models" / f"{name}.bif.gz")


def tables(count, missing, truth):
    """Complete rows, and the same with entries hidden, as frames of strings."""
    generator = torch.Generator().manual_seed(0)
    rows = rg.infer(truth).sample(count, generator).to_frame().astype(object)
    return rows, rows.mask((torch.rand(rows.shape, generator=generator) < missing).numpy())


def uniform(truth):
    """The same network with uniform tables, at which all start."""
    parts = []
    for x in truth.variables:
        table = truth.cpt(x)
        parts.append((x, truth.parents(x), torch.full_like(table, 1 / table.shape[-1])))
    return rg.FactorGraph.bayesian_network(parts)


def ours(start, rows, steps):
    begin = time.process_time()
    prior = PRIOR if len(rows.columns) == len(start.variables) else 0.0  # pgmpy's EM has none
    network = BayesianNetwork(start, prior=prior, limit=steps).fit(rows)
    spent = time.process_time() - begin
    return spent, network.fit_.steps, network.graph_


def agrum(start, rows, steps):
    import pyagrum as gum

    gum.setNumberOfThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        rg.write(start, pathlib.Path(folder) / "start.bif")
        network = gum.loadBN(f"{folder}/start.bif")
        learner = gum.BNLearner(rows.fillna("?"), network, ["?"])
        learner.setNumberOfThreads(1)
        learner.useSmoothingPrior(PRIOR)
        learner.useEMWithRateCriterion(1e-6, 0.0)
        learner.EMsetMaxIter(steps)
        begin = time.process_time()
        fitted = learner.learnParameters(network.dag())
        spent = time.process_time() - begin
        gum.saveBN(fitted, f"{folder}/fitted.bif")
        return spent, learner.EMnbrIterations(), rg.read(f"{folder}/fitted.bif")


def pgmpy_of(start, rows, steps):
    from pgmpy import config
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.models import DiscreteBayesianNetwork
    from pgmpy.parameter_estimator import DiscreteEM

    config.set_backend("numpy")
    edges = [(p.name, x.name) for x in start.variables for p in start.parents(x)]
    hidden = {x.name: x.size for x in start.variables if x.name not in rows}
    network = DiscreteBayesianNetwork(edges, latents=set(hidden))
    states = {
        x.name: list(range(x.size) if x.name in hidden else x.states) for x in start.variables
    }
    begun = {}
    for x in start.variables:
        names = [p.name for p in start.parents(x)]
        table = start.cpt(x).movedim(-1, 0).reshape(x.size, -1).tolist()
        sizes = [p.size for p in start.parents(x)]
        begun[x.name] = TabularCPD(
            x.name, x.size, table, names, sizes, {name: states[name] for name in (x.name, *names)}
        )
    begin = time.process_time()
    em = DiscreteEM(
        state_names={name: own for name, own in states.items() if name in rows},
        latent_card=hidden,
        max_iter=steps,
        init_cpds=begun,
        show_progress=False,
    ).fit(network, rows)
    spent = time.process_time() - begin
    tables = {cpd.variable: cpd for cpd in em.parameters_}
    parts = []
    for x in start.variables:
        cpd, parents = tables[x.name], start.parents(x)
        order = [cpd.variables.index(name) for name in (*(p.name for p in parents), x.name)]
        parts.append((x, parents, torch.tensor(cpd.values).permute(order).double()))
    return spent, steps, rg.FactorGraph.bayesian_network(parts, tolerance=1e-2)


def memory(truth, start, count, missing, steps):
    """Rows in columns of one byte for each entry, drawn a part at a time, and fitted."""
    import pandas

    generator = torch.Generator().manual_seed(0)
    parts = []
    for size in torch.arange(count).split(PART):
        drawn = rg.infer(truth).sample(len(size), generator)
        part = torch.stack([drawn[x.name] for x in truth.variables], 1).to(torch.int8)
        parts.append(part.masked_fill(torch.rand(part.shape, generator=generator) < missing, -1))
    codes = torch.cat(parts).numpy()
    del parts, drawn, part
    rows = pandas.DataFrame({
        x.name: pandas.Categorical.from_codes(own, names_of(x.states))
        for x, own in zip(truth.variables, codes.T, strict=True)
    })  # fmt: skip
    before = peak()
    network = BayesianNetwork(start, prior=PRIOR, limit=steps).fit(rows)
    print(
        f"memory   {count:,} rows, {network.fit_.steps} steps: {peak():.0f} MB at most, "
        f"{before:.0f} MB before the fit, {time.process_time():.0f} s in all"
    )


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def compared(task, start, rows, fits, steps):
    base = None
    for name, fit in fits.items():
        try:
            spent, made, graph = fit(start, rows, steps if base else 500)
        except ImportError as error:
            print(f"{task:8} {name:9} {error}")
            continue
        each = spent / max(made, 1)
        base = base or (spent, each)
        value = float(rg.infer(graph.condition(rows)).log_partition.sum())
        print(
            f"{task:8} {name:9} {made:4} steps {spent:9.2f} s  {each:8.3f} s a step  "
            f"log-likelihood {value:14.2f}  ratios {spent / base[0]:8.1f} in all, "
            f"{each / base[1]:8.1f} a step",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="alarm")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--missing", type=float, default=0.2)
    parser.add_argument("--task", choices=("gaps", "hidden", "both", "memory"), default="both")
    parser.add_argument("--steps", type=int, default=200, help="of peers, at most")
    options = parser.parse_args()
    torch.set_num_threads(1)
    truth = network_named(options.network)
    start = uniform(truth)
    if options.task == "memory":
        memory(truth, start, options.rows, options.missing, options.steps)
        return
    rows, gaps = tables(options.rows, options.missing, truth)
    if options.task != "hidden":
        compared("gaps", start, gaps, {"rdpgraph": ours, "pyAgrum": agrum}, options.steps)
    if options.task != "gaps":
        parents = [p.name for x in truth.variables for p in truth.parents(x)]
        column = rows.drop(columns=max(parents, key=parents.count))
        edges = [(p.name, x.name) for x in truth.variables for p in truth.parents(x)]
        states = {x.name: x.states for x in truth.variables}
        # Uniform tables are a saddle where a column is hidden: those beside it are drawn.
        start = BayesianNetwork(edges, states=states, limit=0).fit(column).graph_
        compared("hidden", start, column, {"rdpgraph": ours, "pgmpy": pgmpy_of}, options.steps)


if __name__ == "__main__":
    main()
