"""Runs the notebooks and stores their outputs: ``python docs/hooks/notebooks.py``."""

from __future__ import annotations

import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def main() -> None:
    """Run each notebook in an empty folder and store it with its outputs."""
    import nbclient
    import nbformat

    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            resources = {"metadata": {"path": folder}}
            nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times
            if cell.cell_type == "code":
                cell.outputs = joined(cell.outputs)
        nbformat.write(notebook, path)


def joined(outputs: list[dict]) -> list[dict]:
    """Return outputs with what was printed in one."""
    kept: list[dict] = []
    for output in outputs:
        if kept and output["output_type"] == kept[-1]["output_type"] == "stream":
            kept[-1]["text"] += output["text"]
        else:
            kept.append(output)
    return kept


if __name__ == "__main__":
    main()
