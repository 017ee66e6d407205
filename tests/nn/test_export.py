"""A CRF exported by torch and to ONNX, against the layer itself."""

import io

import pytest
import torch

from rdpgraph.nn import CRF, bio_constraints

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
