"""A CRF exported by torch and to ONNX, against the layer itself."""

import io
import itertools
import math

import pytest
import torch

from rdpgraph.nn import CRF, bio_constraints, bioes_constraints

LENGTHS = torch.tensor([4, 1, 2])


def layer(*, batch_first, constrained):
    rules = bio_constraints(["O", "B-X", "I-X"]) if constrained else None
    crf = CRF(3, batch_first=batch_first, constraints=rules)
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in crf.parameters():
            parameter.normal_(generator=source)
    return crf


def inputs(seed, *, batch_first):
    emissions = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(4) < LENGTHS.roll(seed).unsqueeze(1)
    return (emissions, mask) if batch_first else (emissions.transpose(0, 1), mask.t())


def agrees(crf, run):
    for seed in range(3):
        emissions, mask = inputs(seed, batch_first=crf.batch_first)
        tags, log_z = run(emissions, mask)
        rows, ons = (tags, mask) if crf.batch_first else (tags.t(), mask.t())
        assert [row[on].tolist() for row, on in zip(rows, ons, strict=True)] == crf.decode(
            emissions, mask
        )
        assert (rows[~ons] == -1).all()
        torch.testing.assert_close(log_z, crf.chain(emissions, mask).log_partition().detach())


def packs(crf, run):
    """Any mask is that of the steps that are on, by themselves; others may hold NaN."""
    emissions, _ = inputs(0, batch_first=True)
    for ons in itertools.product([False, True], repeat=4):
        mask = torch.tensor([ons, [True] * 4, ons[::-1]])
        given = emissions.masked_fill(~mask.unsqueeze(-1), math.nan), mask
        given = given if crf.batch_first else [part.transpose(0, 1) for part in given]
        tags, log_z = run(*given)
        tags = tags if crf.batch_first else tags.t()
        for item in (0, 2):
            on = mask[item]
            assert (tags[item, ~on] == -1).all()
            if not bool(on.any()):
                assert float(log_z[item]) == 0.0
                continue
            kept = emissions[item, on].unsqueeze(0)
            kept = kept if crf.batch_first else kept.transpose(0, 1)
            assert tags[item, on].tolist() == crf.decode(kept)[0]
            expected = crf.chain(kept).log_partition().detach()[0]
            torch.testing.assert_close(log_z[item], expected)


@pytest.mark.parametrize("batch_first", [False, True])
def test_any_mask_is_that_of_the_steps_that_are_on(batch_first):
    crf = layer(batch_first=batch_first, constrained=True)
    packs(crf, crf.exportable())


def test_masks_of_numbers_are_masks():
    crf, (emissions, mask) = layer(batch_first=True, constrained=False), inputs(0, batch_first=True)
    for one, other in zip(
        crf.exportable()(emissions, mask.to(torch.uint8)),
        crf.exportable()(emissions, mask), strict=True,
    ):  # fmt: skip
        assert torch.equal(one, other)


def test_an_item_without_a_possible_sequence_has_no_tags():
    """One step of BIOES can be no "B-X" alone."""
    crf = CRF(1, batch_first=True, constraints=bioes_constraints(["B-X"]))
    tags, log_z = crf.exportable()(torch.zeros(1, 2, 1), torch.ones(1, 2, dtype=torch.bool))
    assert tags.tolist() == [[-1, -1]]
    assert log_z.tolist() == [-math.inf]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("constrained", [False, True])
def test_the_unrolled_layer_has_its_answers(batch_first, constrained):
    crf = layer(batch_first=batch_first, constrained=constrained)
    agrees(crf, crf.exportable())


@pytest.mark.long
def test_a_program_of_torch_has_its_answers():
    crf = layer(batch_first=True, constrained=True)
    program = torch.export.export(crf.exportable(), inputs(0, batch_first=True))
    agrees(crf, program.module())
    packs(crf, program.module())


@pytest.mark.long
def test_onnxruntime_has_its_answers():
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    crf = layer(batch_first=False, constrained=True)
    names = {"input_names": ["emissions", "mask"], "output_names": ["tags", "log_z"]}
    given = inputs(0, batch_first=False)
    program = torch.onnx.export(crf.exportable(), given, dynamo=True, verbose=False, **names)
    program.save(file := io.BytesIO())
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])

    def run(emissions, mask):
        fed = {"emissions": emissions.numpy(), "mask": mask.numpy()}
        return [torch.from_numpy(found) for found in session.run(None, fed)]

    agrees(crf, run)
    packs(crf, run)
