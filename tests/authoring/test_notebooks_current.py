"""What the stored notebooks show; `make notebooks-check` holds them to their sources."""

import nbformat

from tests.support.repository import ROOT


def test_no_stored_output_fails_its_own_comparison():
    """`dl.show(..., expected=...)` writes "is NOT"; no stored output may."""
    failed = {}
    for path in sorted(ROOT.glob("[ns]*/*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        failed[f"{path.parent.name}/{path.stem}"] = sum(
            output.get("text", "").count(" is NOT ") for output in outputs
        )
    assert len(failed) > 30
    assert {name: count for name, count in failed.items() if count} == {}
