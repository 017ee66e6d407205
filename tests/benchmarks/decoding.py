"""Decoders on surface codes of stim, on the same shots: logical errors and ms of one core a shot.

Kept states of the full model beside matching (plain and correlated), relay-bp, BP+OSD and
tesseract, where they are installed, on surface codes and the gross code, with McNemar's exact p
against the first number of states; the reliability of calibrated confidence; and messages beside
those of ldpc on the gross code, learned damping, and learned rates.

    OMP_NUM_THREADS=1 python tests/benchmarks/decoding.py --shots 2000 --keep 60 300
    OMP_NUM_THREADS=1 python tests/benchmarks/decoding.py --code color_code:memory_xyz --rate 0.003
    OMP_NUM_THREADS=1 python tests/benchmarks/decoding.py --gross --rate 0.004 --limit 60
    OMP_NUM_THREADS=1 python tests/benchmarks/decoding.py --reliability --rate 0.005 --shots 100000
    OMP_NUM_THREADS=1 python tests/benchmarks/decoding.py --messages
    OMP_NUM_THREADS=1 python tests/benchmarks/decoding.py --damping --shots 4000
    OMP_NUM_THREADS=1 python tests/benchmarks/decoding.py --classical --shots 100
    OMP_NUM_THREADS=1 python tests/benchmarks/decoding.py --learned --shots 100000
"""

import argparse
import functools
import importlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph import decoding
from rdpgraph.decoding import cosets
from rdpgraph.decoding.cosets import Calibration
from rdpgraph.structures.parity import sweeps

SURFACE = "surface_code:rotated_memory_z"


def circuit(distance: int, rounds: int, rate: float, kind: str = SURFACE) -> Any:
    return importlib.import_module("stim").Circuit.generated(
        kind, distance=distance, rounds=rounds,
        after_clifford_depolarization=rate, before_measure_flip_probability=rate,
        after_reset_flip_probability=rate, before_round_data_depolarization=rate,
    )  # fmt: skip


def peers(code: Any, model: rg.ParityModel) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Names, and what decides on shots (B, detectors) as (B, observables) bits."""
    plain = code.detector_error_model()
    # What stim cannot divide into errors of at most two checks, matching leaves out.
    split = code.detector_error_model(decompose_errors=True, ignore_decomposition_failures=True)
    errors = [each for each in split.flattened() if each.type == "error"]
    left = sum(widest(each) > 2 for each in errors)
    if left:
        print(f"  matching: {left} of {len(errors)} errors flip more than two checks in each way")
    matching = importlib.import_module("pymatching").Matching
    for name, options in (("matching", {}), ("correlated", {"enable_correlations": True})):
        if left > len(errors) / 100 or (left and options):
            continue
        decoder = matching.from_detector_error_model(split, **options)
        yield name, lambda shots, d=decoder, more=options: d.decode_batch(shots, **more)
    try:
        first_solution = relay(model)
    except ImportError as error:
        print(f"  relay-bp: {error}")
    else:
        yield "relay-bp", first_solution
    parities, rounds = model.checks.merged(observables=True)
    rates = sweeps.linear(model.unary.unsqueeze(0), rounds)[0][0]
    chance = (rates[:, 1] / rates.sum(1)).tolist()
    matrix, seen = (part.numpy().astype(np.uint8) for part in parities.matrices)
    sparse = importlib.import_module("scipy.sparse").csr_matrix(matrix)
    try:
        osd = importlib.import_module("ldpc.bposd_decoder").BpOsdDecoder(
            sparse, error_channel=chance, max_iter=30, bp_method="minimum_sum",
            ms_scaling_factor=0.625, osd_method="osd_cs", osd_order=7,
        )  # fmt: skip
    except ImportError as error:
        print(f"  BP+OSD: {error}")
    else:
        yield "BP+OSD", lambda shots: np.array([osd.decode(row) @ seen.T % 2 for row in shots])
    try:
        tesseract = importlib.import_module("tesseract_decoder").tesseract
        best = tesseract.TesseractConfig(dem=plain, det_beam=5).compile_decoder()
    except (ImportError, TypeError, AttributeError) as error:
        print(f"  tesseract: {error}")
    else:
        yield "tesseract", lambda shots: np.array([best.decode(row.astype(bool)) for row in shots])


def widest(error: Any) -> int:
    """The most checks that a part of stim's error flips."""
    sizes = [0]
    for target in error.targets_copy():
        if target.is_separator():
            sizes.append(0)
        sizes[-1] += target.is_relative_detector_id()
    return max(sizes)


def two_sided(one: int, other: int) -> float:
    """McNemar's exact p value of counts of shots that one alone decides wrongly."""
    total, least = one + other, min(one, other)
    tail = sum(math.comb(total, k) for k in range(least + 1)) / 2**total
    return min(1.0, 2 * tail)


def gross_circuit(rate: float, rounds: int = 12) -> Any:
    """A Z memory of the gross code, with noise after each operation and on idle bits.

    The polynomials and the order of the gates are those of Bravyi et al., "High-threshold and
    low-overhead fault-tolerant quantum memory" (2024). Detectors are those of the Z checks.
    """
    stim = importlib.import_module("stim")
    size, data = 72, list(range(144))
    across, checks = list(range(144, 216)), list(range(216, 288))  # ancillas of X and of Z checks
    a, b = [(3, 0), (0, 1), (0, 2)], [(0, 3), (1, 0), (2, 0)]

    def turned(power: tuple[int, int], sign: int, first: int) -> list[int]:
        """The bit of each check that a monomial x^i y^j gives, of a block that starts at first."""
        i, j = power
        return [
            first + (x + sign * i) % 12 * 6 + (y + sign * j) % 6
            for x in range(12)
            for y in range(6)
        ]

    x_bits = [turned(one, 1, 0) for one in a] + [turned(one, 1, size) for one in b]
    z_bits = [turned(one, -1, 0) for one in b] + [turned(one, -1, size) for one in a]
    code = stim.Circuit()
    code.append("R", data)
    code.append("X_ERROR", data, rate)
    for number in range(rounds):
        code.append("RX", across)
        code.append("Z_ERROR", across, rate)
        code.append("R", checks)
        code.append("X_ERROR", checks, rate)
        for x_turn, z_turn in zip([None, 1, 4, 3, 5, 0, 2], [3, 5, 0, 1, 2, 4, None], strict=True):
            pairs: list[int] = []
            for at in range(size):
                pairs += [] if x_turn is None else [across[at], x_bits[x_turn][at]]
                pairs += [] if z_turn is None else [z_bits[z_turn][at], checks[at]]
            code.append("CX", pairs)
            code.append("DEPOLARIZE2", pairs, rate)
            code.append("DEPOLARIZE1", sorted({*data} - {*pairs}), rate)
        code.append("Z_ERROR", across, rate)
        code.append("X_ERROR", checks, rate)
        code.append("MX", across)
        code.append("M", checks)
        code.append("DEPOLARIZE1", data, rate)
        for at in range(size):
            seen = [at - size] + ([at - 3 * size] if number else [])
            code.append("DETECTOR", [stim.target_rec(one) for one in seen])
    code.append("X_ERROR", data, rate)
    code.append("M", data)
    for at in range(size):
        seen = [z_bits[turn][at] - 144 for turn in range(6)] + [at - size - 144]
        code.append("DETECTOR", [stim.target_rec(one) for one in seen])
    rows = np.zeros((2, size, 144), dtype=np.uint8)
    for kind, bits in enumerate((x_bits, z_bits)):
        for turn in bits:
            rows[kind, range(size), turn] ^= 1
    for number, row in enumerate(logicals(rows[0], rows[1])):
        seen = [stim.target_rec(int(bit) - 144) for bit in np.flatnonzero(row)]
        code.append("OBSERVABLE_INCLUDE", seen, number)
    return code


def reduced(rows: Any) -> tuple[Any, list[int]]:
    """Independent rows of the same span modulo two, in echelon form, and their first columns."""
    rows, places = rows.copy(), list[int]()
    for column in range(rows.shape[1]):
        below = np.flatnonzero(rows[len(places) :, column]) + len(places)
        if not len(below):
            continue
        rows[[len(places), below[0]]] = rows[[below[0], len(places)]]
        others = np.flatnonzero(rows[:, column])
        rows[others[others != len(places)]] ^= rows[len(places)]
        places.append(column)
    return rows[: len(places)], places


def logicals(others: Any, own: Any) -> list[Any]:
    """Rows that commute with the checks of one kind, and are no sums of those of the other."""
    echelon, places = reduced(others)
    span, found = reduced(own)[0], list[Any]()
    for free in sorted({*range(others.shape[1])} - {*places}):
        row = np.zeros(others.shape[1], dtype=np.uint8)
        row[free], row[places] = 1, echelon[:, free]
        wider = reduced(np.vstack([span, row]))[0]
        if len(wider) > len(span):
            span = wider
            found.append(row)
    return found


def relay(model: rg.ParityModel) -> Callable[[Any], Any]:
    """What decides on shots by relay-bp's first solution."""
    scipy = importlib.import_module("scipy.sparse")
    parts = []
    for which, size in enumerate((model.checks.num_checks, model.checks.num_observables)):
        ends = [
            (row, at) for at, column in enumerate(model.checks.columns) for row in column[which]
        ]
        entries = np.ones(len(ends), dtype=np.uint8), tuple(np.array(ends).T)
        parts.append(scipy.csr_matrix(entries, shape=(size, len(model.checks.columns))))
    decoder = importlib.import_module("relay_bp").RelayDecoderF64(
        parts[0], error_priors=model.unary[:, 1].exp().numpy(), gamma0=0.1, pre_iter=80,
        num_sets=300, set_max_iter=60, gamma_dist_interval=(-0.24, 0.66), stop_nconv=1,
    )  # fmt: skip
    return lambda shots: np.stack([parts[1] @ decoder.decode(row) % 2 for row in shots])


BLOCK = 1000
"""Shots of one seed."""


def decisions(
    decoder: decoding.CosetDecoder, draw: Callable[[int], tuple[Any, Any]], shots: int, path: str
) -> tuple[decoding.Decoded, torch.Tensor]:
    """Decisions on blocks of shots of one seed each, and whether they are wrong.

    With a path they are kept there every minute, and a run that was ended goes on.
    """
    names = ("wrong", "doubt", "share", "lower", "upper")
    parts = [dict(np.load(path))] if path and Path(path).exists() else []
    done, last = sum(len(part["wrong"]) for part in parts), time.monotonic()
    while done < shots:
        events, flips = draw(done)
        found = decoder._decode(events, bounded=True)
        wrong = (found.observables != torch.as_tensor(flips).to(found.observables)).any(1)
        values = wrong, found.doubt, found.share, *found.interval
        parts.append({name: one.numpy() for name, one in zip(names, values, strict=True)})
        done += len(events)
        if path and (done >= shots or time.monotonic() - last > 60):
            parts = [{name: np.concatenate([part[name] for part in parts]) for name in names}]
            np.savez_compressed(path, **parts[0])
            last = time.monotonic()
    wrong, doubt, share, lower, upper = (
        torch.tensor(np.concatenate([part[name] for part in parts])[:shots]) for name in names
    )
    bits = wrong.long().unsqueeze(1)  # beside observables of zero
    ends = (lower, upper)
    return decoding.Decoded(bits, lower, lower * 0, share, doubt, ends, upper - lower), wrong


def reliability(code: Any, name: str, shots: int, keep: int, store: str | None) -> None:
    """Predicted and observed wrong decisions, by bins of the confidence that is reported."""
    model = rg.ParityModel.from_dem(code.detector_error_model())
    decoder = decoding.CosetDecoder(model, keep=keep or None)

    def drawn(at: int) -> tuple[Any, Any]:
        syndromes, seen = cosets._drawn(model, BLOCK, torch.Generator().manual_seed(10**6 + at))
        return syndromes, seen[:, 0]

    def sampled(at: int) -> tuple[Any, Any]:
        sampler = code.compile_detector_sampler(seed=5 * 10**6 + at)
        events, flips = sampler.sample(BLOCK, separate_observables=True)
        return events.astype(np.int8), flips

    paths = [f"{store}.{kind}.npz" if store else "" for kind in ("model", "stim")]
    found, wrong = decisions(decoder, sampled, shots, paths[1])
    print(f"{name}, {keep or 'all'} states, {shots} shots to measure and {shots} to try")
    group, known = torch.full((shots,), -1), torch.ones(shots, dtype=torch.bool)
    if keep:
        simulated, bad = decisions(decoder, drawn, shots, paths[0])
        measured = Calibration.of(simulated, torch.zeros(len(bad), 1), erased=False)
        found = cosets._reported(found, ~known, shots, measured, lambda: measured)
        group = torch.bucketize(-found.doubt, -measured.doubts, right=True)
    else:
        found = replace(found, confidence=found.interval[0])
    chance = 1 - found.confidence
    edges = torch.tensor([1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3], dtype=torch.float64)
    place, worst, bins = torch.bucketize(chance, edges), 0.0, 0
    some = torch.zeros_like(known)
    for number in range(len(edges) + 1):
        some = some | (place == number)
        # Counts below ten are not normal: their bin is joined with the next.
        last = not bool((place > number).any())
        if not bool(some.any()) or (chance[some].sum() < 10 and not last):
            continue
        predicted, seen = float(chance[some].sum()), int(wrong[some].sum())
        # The count of these shots varies, and so does what was measured, alike for all of a group.
        spread = float((chance * (1 - chance))[some].sum())
        for each in group[some].unique():
            spread += float(found.standard_error[some & (group == each)].sum()) ** 2
        away = (seen - predicted) / max(math.sqrt(spread), 1e-9)
        worst, bins = max(worst, abs(away)), bins + 1
        ends = f"{float(chance[some].min()):.2g} to {float(chance[some].max()):.2g}"
        print(
            f"  {ends}: {int(some.sum())} shots, {predicted:.1f} predicted, {seen} wrong, "
            f"{away:+.1f} of {math.sqrt(spread):.1f}"
        )
        some = torch.zeros_like(known)
    print(
        f"  in all {float(chance.sum()):.1f} predicted, {int(wrong.sum())} wrong; the farthest of "
        f"{bins} bins is {worst:.1f} sigma away"
    )


def sampled(code: Any, shots: int) -> tuple[Any, Any]:
    """The first shots of blocks of 10,000, each of one seed: fewer are some of the same."""
    blocks = [
        code.compile_detector_sampler(seed=1000 + at).sample(10_000, separate_observables=True)
        for at in range(-(-shots // 10_000))
    ]
    events, flips = (np.concatenate(part)[:shots] for part in zip(*blocks, strict=True))
    return events.astype(np.uint8), flips


def codes(code: Any, name: str, shots: int, keep: list[int], limit: float) -> None:
    """Wrong decisions about the observables, and McNemar's p beside the first decoder.

    Each decoder has `limit` seconds of processor time, and ends with the shots that it had.
    """
    model = rg.ParityModel.from_dem(code.detector_error_model())
    events, truth = sampled(code, shots)
    print(f"{name}: {model.checks}, {model.checks.open_checks} open checks")
    first = None

    def report(name: str, decide: Callable[[Any], Any], step: int) -> None:
        nonlocal first
        begin, found = time.process_time(), list[Any]()
        for at in range(0, shots, step):
            found.append(np.asarray(decide(events[at : at + step])).astype(bool))
            if time.process_time() - begin > limit:
                break
        decided = np.concatenate(found)
        done = len(decided)
        ms = 1e3 * (time.process_time() - begin) / done
        wrong = (decided.reshape(done, -1) != truth[:done]).any(1)
        first = wrong if first is None else first
        both = min(done, len(first))
        one, other = (
            int((a & ~b).sum())
            for a, b in ((wrong[:both], first[:both]), (first[:both], wrong[:both]))
        )
        print(
            f"  {name}: {int(wrong.sum())} errors of {done} (the first: {int(first[:both].sum())} "
            f"of {both}), {ms:.3g} ms, wrong alone {one}, {other}, p {two_sided(one, other):.2g}",
            flush=True,
        )

    for states in keep:
        decoder = decoding.CosetDecoder(model, keep=states)
        report(f"{states} states", decoder.decide, 200)
    for name, decide in peers(code, model):
        report(name, decide, 200 if name in ("matching", "correlated") else 5)


def gross() -> Any:
    """The X checks of the gross code, 72 of 144 bits."""
    scipy = importlib.import_module("scipy.sparse")
    turn = lambda n, k: scipy.csr_matrix(np.roll(np.eye(n), k, 1))  # noqa: E731
    x, y = (
        (lambda k: scipy.kron(turn(12, k), turn(6, 0))),
        (lambda k: scipy.kron(turn(12, 0), turn(6, k))),
    )
    return scipy.hstack([x(3) + y(1) + y(2), y(3) + x(1) + x(2)]).tocsr().astype(np.uint8)


def toric(size: int) -> torch.Tensor:
    """Vertices of a square grid on a torus, and their edges."""
    line = torch.eye(size) + torch.eye(size).roll(1, 0)
    return torch.cat([torch.kron(torch.eye(size), line), torch.kron(line, torch.eye(size))], 1)


def damping(shots: int) -> None:
    """Undecoded shots of min-sum by damping: none, the best single one, and learned edges."""
    surface = rg.ParityModel.from_dem(circuit(3, 3, 0.01).detector_error_model())
    merged, rounds = surface.checks.merged(observables=False)
    rates = sweeps.linear(surface.unary.unsqueeze(0), rounds)[0][0]
    same = torch.full((1,), 0.08), torch.full((1,), 0.06)
    for name, checks, chance in (
        ("toric 4 x 4", toric(4), same[0]), ("toric 6 x 6", toric(6), same[0]),
        ("gross", torch.tensor(gross().toarray()), same[1]),
        ("surface d3 r3", merged.matrices[0], rates[:, 1] / rates.sum(1)),
    ):  # fmt: skip
        generator = torch.Generator().manual_seed(0)
        chance = chance.double().expand(checks.shape[1])
        errors = torch.rand(shots + 3000, len(chance), generator=generator) < chance
        held, given = (errors.double() @ checks.T.double() % 2).long().split([shots, 3000])

        start = decoding.MessagesDecoder(checks, chance.logit(), 20)
        counts = {
            share: undecoded(replace(start, damping=share), held)
            for share in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
        }
        best = min(counts, key=counts.__getitem__)
        learned = decoding.learn_damping(
            replace(start, damping=best), given, steps=60, generator=generator
        )
        print(f"{name}: {counts[0.0]}, {counts[best]} ({best}), {undecoded(learned, held)}")


def undecoded(decoder: decoding.MessagesDecoder, shots: torch.Tensor) -> int:
    return int((decoder.run(shots).violated > 0).sum())


def learned(shots: int) -> None:
    """Rates from syndromes alone, and how many standard errors they are from the truth."""
    generated = importlib.import_module("stim").Circuit.generated
    repetition = generated(
        "repetition_code:memory", distance=5, rounds=5, after_clifford_depolarization=0.02,
        before_measure_flip_probability=0.02, before_round_data_depolarization=0.02,
    )  # fmt: skip
    for name, code in (("repetition d5", repetition), ("surface d3", circuit(3, 3, 0.01))):
        model = rg.ParityModel.from_dem(code.detector_error_model())
        _, rounds = model.checks.merged(observables=False)
        truth = sweeps.linear(model.unary.unsqueeze(0), rounds)[0][0]
        truth = truth[:, 1] / truth.sum(1)
        begin = time.process_time()
        events = torch.as_tensor(code.compile_detector_sampler(seed=1).sample(shots)).long()
        found = decoding.learn_rates(model, events)
        away = ((found.rates - truth) / found.standard_errors).abs()
        print(
            f"{name}: {int((away <= 3).sum())} of {len(away)} rates within three standard "
            f"errors, at most {float(away.max()):.1f}; {time.process_time() - begin:.0f} s"
        )


def messages(shots: int) -> None:
    """Microseconds a shot and iteration of min-sum, parallel, on the gross code."""
    scipy = importlib.import_module("scipy.sparse")
    data = scipy.kron(scipy.eye(13), gross())
    pairs = scipy.diags([1.0, 1.0], [0, -1], shape=(13, 12))
    timed = scipy.hstack([data, scipy.kron(pairs, scipy.eye(72))]).tocsr().astype(np.uint8)
    ldpc, rng = importlib.import_module("ldpc"), np.random.default_rng(0)
    for matrix, rate in ((gross(), 0.06), (timed, 0.02)):
        errors = (rng.random((shots, matrix.shape[1])) < rate).astype(np.uint8)
        syndromes = (matrix @ errors.T % 2).T.astype(np.uint8)
        odds = torch.tensor(rate, dtype=torch.float64).logit()
        for schedule in ("parallel", "serial"):
            ours = decoding.MessagesDecoder(matrix, odds, 30, serial=schedule == "serial")
            theirs = ldpc.BpDecoder(
                matrix, error_rate=rate, max_iter=30, bp_method="minimum_sum",
                ms_scaling_factor=1.0, schedule=schedule,
            )  # fmt: skip
            begin = time.process_time()
            decided = ours.run(syndromes)
            own = time.process_time() - begin
            begin, steps, same = time.process_time(), 0, 0
            for row, errors in zip(syndromes, decided.errors.numpy(), strict=True):
                same += bool((theirs.decode(row) == errors).all())
                steps += theirs.iter
            other, count = time.process_time() - begin, int(decided.iterations.sum())
            print(
                f"{matrix.shape}, {schedule}: {1e6 * own / count:.2f} us a shot and iteration, "
                f"ldpc {1e6 * other / max(steps, 1):.2f}; {same} of {shots} decisions are the same"
            )


def classical(shots: int) -> None:
    """Block errors of a random (3, 6) code of 10,000 bits, beside ldpc, on the same shots."""
    ldpc, scipy = importlib.import_module("ldpc"), importlib.import_module("scipy.sparse")
    rng, bits = np.random.default_rng(0), 10_000
    ends = np.concatenate([rng.permutation(bits) for _ in range(3)])
    entries = np.ones(3 * bits, dtype=int), (np.arange(3 * bits) // 6, ends)
    matrix = scipy.csr_matrix(entries, shape=(bits // 2, bits))
    matrix.data %= 2
    matrix.eliminate_zeros()
    matrix = matrix.astype(np.uint8)
    for decibels in (1.1, 1.2, 1.3, 1.5, 2.0, 3.0):
        deviation = 10 ** (-decibels / 20)  # of a code of rate 1/2
        sent = rng.integers(0, 2, (shots, bits), dtype=np.uint8)  # a word of a coset of the code
        received = 1 - 2.0 * sent + deviation * rng.normal(size=(shots, bits))
        odds, syndromes = -2 * received / deviation**2, (matrix @ sent.T % 2).T
        for product in (False, True):
            options = {"scale": 1.0 if product else 0.8, "product": product}
            ours = decoding.MessagesDecoder(matrix, 0.0, 50, **options)
            begin = time.process_time()
            decided = ours.run(syndromes, torch.tensor(odds)).errors.numpy()
            ms, begin = time.process_time() - begin, time.process_time()
            own = (decided != sent).any(1)
            theirs = ldpc.BpDecoder(
                matrix, error_rate=0.1, max_iter=50, ms_scaling_factor=0.8,
                bp_method="product_sum" if product else "minimum_sum",
                input_vector_type="syndrome",
            )  # fmt: skip
            wrong = 0
            rows = zip(1 / (1 + np.exp(-odds)), syndromes, sent, strict=True)
            for row, syndrome, word in rows:
                theirs.update_channel_probs(np.clip(row, 1e-12, 1 - 1e-12))
                wrong += bool((theirs.decode(syndrome) != word).any())
            other = time.process_time() - begin
            print(
                f"{decibels} dB, {'sum-product' if product else 'min-sum'}: {int(own.sum())} of "
                f"{shots} blocks wrong, {1e3 * ms / shots:.1f} ms a block; ldpc {wrong}, "
                f"{1e3 * other / shots:.1f} ms"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", default=SURFACE, help="as stim calls it")
    parser.add_argument("--distance", type=int, default=5)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--shots", type=int, default=2000)
    parser.add_argument("--keep", type=int, nargs="+", default=[60], help="0: exact (reliability)")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of each decoder")
    parser.add_argument("--gross", action="store_true")
    parser.add_argument("--reliability", action="store_true")
    parser.add_argument("--store", help="files that begin so keep decisions (reliability)")
    parser.add_argument("--messages", action="store_true")
    parser.add_argument("--damping", action="store_true")
    parser.add_argument("--classical", action="store_true")
    parser.add_argument("--learned", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rounds = given.rounds or given.distance
    own = functools.partial(circuit, given.distance, rounds, given.rate, given.code)
    name = f"{given.code} d{given.distance} r{rounds} p={given.rate}"
    if given.gross:
        own, name = functools.partial(gross_circuit, given.rate), f"gross p={given.rate}"
    if given.reliability:
        reliability(own(), name, given.shots, given.keep[0], given.store)
    elif given.damping:
        damping(given.shots)
    elif given.learned:
        learned(given.shots)
    elif given.classical:
        classical(given.shots)
    elif given.messages:
        messages(given.shots)
    else:
        codes(own(), name, given.shots, given.keep, given.limit)
