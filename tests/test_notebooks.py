"""The notebooks run from top to bottom, and give what is stored in them."""

import asyncio
import os
import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
SECONDS = 120
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text(cell) -> str:
    """All that a cell prints, and the value that it shows."""
    return "".join(
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in cell.outputs
    )


def everything(path: Path) -> str:
    """The notebook without its pictures, whose letters could spell anything."""
    return re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))


def pictures(cell) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.outputs)


def execute(path: Path, folder: Path) -> list:
    """The code cells after a run in a new kernel of this interpreter, in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    # Kernels that are installed for the user could be of another interpreter: do not look there.
    kernels = KernelSpecManager(kernel_dirs=[])
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_name="python3", kernel_spec_manager=kernels),
        resources={"metadata": {"path": str(folder)}},
        timeout=None,
    )
    # The kernel chooses how it draws, and the user's IPython settings take no part.
    settings = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    settings |= {"IPYTHONDIR": str(folder), "JAX_PLATFORMS": "cpu"}
    run = client.async_execute(env=settings, cleanup_kc=True)
    asyncio.run(asyncio.wait_for(run, SECONDS))
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebooks_are_numbered() -> None:
    numbers = [path.name[:3] for path in NOTEBOOKS]
    assert len(numbers) >= 2
    assert numbers == [f"{number:02}_" for number in range(1, len(numbers) + 1)]


@each_notebook
def test_stored_outputs_are_whole(path: Path) -> None:
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        kinds = [output.get("name", output.output_type) for output in cell.outputs]
        assert not {"error", "stderr"} & set(kinds), cell.source
        assert pictures(cell) == cell.source.count("plt.show()"), cell.source
    assert any(pictures(cell) for cell in cells)


@each_notebook
def test_notebook_can_be_shared(path: Path) -> None:
    assert path.stat().st_size < 600_000
    machine = r".*(?:/(?:home|root|tmp|usr|Users)/|Users\\|site-packages).*"
    assert re.findall(machine, everything(path)) == []


@each_notebook
def test_notebook_gives_what_is_stored(path: Path, tmp_path: Path) -> None:
    for stored, fresh in zip(code_cells(path), execute(path, tmp_path), strict=True):
        assert "stderr" not in [output.get("name") for output in fresh.outputs], text(fresh)
        assert pictures(fresh) == pictures(stored), stored.source
        assert NUMBER.sub("#", text(fresh)) == NUMBER.sub("#", text(stored))
        # Shown numbers are rounded to two decimals or more, which may fall to either side on
        # another machine, and another XLA may count FLOPs a little differently.
        numbers = [
            [float(number.replace(",", "")) for number in NUMBER.findall(text(cell))]
            for cell in (fresh, stored)
        ]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.02), text(fresh)


def test_a_stage_is_written_in_the_cell_that_wrote_it(tmp_path: Path) -> None:
    """Whatever cell runs when it is made, or when its error shows."""
    sources = (
        "import jax.numpy as jnp\nfrom combinax.combinators import *",
        "def make():\n\n    return linear(3)",
        "own = linear(4)",
        "made = make()",
        "for term in (own, made):\n    print(*term.written)\nprint(lift(lambda x: x))",
        "try: own({}, jnp.arange(3)[:, None])\nexcept TermError as error: print(error)",
    )
    path = tmp_path / "places.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in sources]), path)
    *_, places, error = map(text, execute(path, tmp_path))
    assert places.splitlines() == [
        "notebook cell 3 1",
        "notebook cell 2 3",
        "lift(<lambda notebook cell 5, line 3>)",
    ]
    assert error.endswith("  > linear(4)  written at notebook cell 3, line 1\n")
