"""Record linkage without labels: precision and recall of EM, beside Splink where it is installed.

    pip install splink==5.0.0
    OMP_NUM_THREADS=1 python tests/benchmarks/linkage.py --pairs 200000

Pairs of records agree in five fields, or not; two per cent are matches, and the postcode depends on
the city. `learn.BayesianNetwork` is fitted with and without that edge. Splink's model, that of
Fellegi and Sunter, has no such edge, and gets the same agreements as records that are compared.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable

import numpy as np
import pandas

from rdpgraph import learn

RATES = {"surname": (0.92, 0.01), "first": (0.9, 0.02), "born": (0.95, 0.003), "city": (0.8, 0.1)}


def drawn(count: int) -> tuple[np.ndarray, pandas.DataFrame]:
    """Which pairs match, and in what they agree."""
    draw = np.random.default_rng(0)
    match = draw.random(count) < 0.02
    agree = {name: draw.random(count) < np.where(match, *rates) for name, rates in RATES.items()}
    other = draw.random(count) < np.where(match, 0.7, 0.05)
    agree["postcode"] = np.where(draw.random(count) < 0.9, agree["city"], other)
    return match, pandas.DataFrame({name: part.astype(int) for name, part in agree.items()})


def fitted(agree: pandas.DataFrame, edges: list[tuple[str, str]]) -> np.ndarray:
    """The probability of a match of each pair, by EM."""
    network = learn.BayesianNetwork(
        [("match", name) for name in agree.columns] + edges,
        states={"match": 2, **dict.fromkeys(agree.columns, 2)}, starts=3, prior=1.0,
    ).fit(agree)  # fmt: skip
    chances = np.array(network.predict_proba(agree, "match"))
    return chances[:, chances.mean(0).argmin()]


def splink(agree: pandas.DataFrame) -> np.ndarray:
    """The same by Splink, from records whose fields are equal where they agree."""
    import splink.comparison_library as library
    from splink import DuckDBAPI, Linker, SettingsCreator, block_on

    count, files, database = len(agree), [], DuckDBAPI()
    for side in ("a", "b"):
        values = {
            name: np.where((agree[name] == 1) | (side == "a"), "same", "other")
            for name in agree.columns
        }
        pair = np.arange(count)
        table = pandas.DataFrame({"unique_id": pair, "pair": pair, **values})
        files.append(database.register(table, dataset_display_name=f"file_{side}"))
    settings = SettingsCreator(
        link_type="link_only", probability_two_random_records_match=0.02,
        comparisons=[library.ExactMatch(name) for name in agree.columns],
        blocking_rules_to_generate_predictions=[block_on("pair")],
    )  # fmt: skip
    linker = Linker(files, settings, log_level="WARNING")
    linker.training.estimate_parameters_using_expectation_maximisation(
        block_on("pair"), fix_u_probabilities=False, fix_probability_two_random_records_match=False
    )
    found = linker.inference.predict().as_pandas_dataframe()
    chances = np.zeros(count)
    chances[found["unique_id_l"].to_numpy()] = found["match_probability"]
    return chances


def measured(name: str, ask: Callable[[], np.ndarray], match: np.ndarray) -> None:
    start = time.process_time()
    said = ask() > 0.5
    spent, hits = time.process_time() - start, (said & match).sum()
    precision, recall = hits / max(said.sum(), 1), hits / max(match.sum(), 1)
    print(f"| {name} | {precision:.3f} | {recall:.3f} | {spent:.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    given = parser.parse_args()
    match, agree = drawn(given.pairs)
    print("| | precision | recall | CPU seconds |\n|---|---|---|---|")
    measured("fields apart", lambda: fitted(agree, []), match)
    fewer = agree.drop(columns="postcode")
    measured("without the postcode", lambda: fitted(fewer, []), match)
    measured("postcode by city", lambda: fitted(agree, [("city", "postcode")]), match)
    if importlib.util.find_spec("splink"):
        measured("Splink", lambda: splink(agree), match)
