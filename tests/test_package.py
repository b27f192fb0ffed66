"""The wheel: what is in it, and that it works beside a user's own `models/` and `train.py`."""

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import combinax

ROOT = Path(__file__).parent.parent
FOLDERS = ("combinators", "models", "train")
DIST_INFO = f"combinax-{combinax.__version__}.dist-info"


def run(*command: object, cwd: Path, python_path: Path | None = None) -> str:
    """The standard output of a command that must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a source distribution that is built from a copy of the checkout."""
    copy = tmp_path_factory.mktemp("source") / "checkout"
    leave = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")
    shutil.copytree(ROOT, copy, ignore=leave)
    built = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, copy, cwd=copy)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the installed wheel in it."""
    target = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target)
    run(*pip, wheel, cwd=target)
    return target


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder whose own modules have the names of our folders."""
    (tmp_path / "train.py").write_text("OWNER = 'user'\n")
    for folder in ("combinators", "models"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("OWNER = 'user'\n")
    return tmp_path


def test_the_wheel_holds_one_name_and_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    modules = {
        f"combinax/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in names if not name.startswith(f"{DIST_INFO}/")}
    assert inside == modules | {"combinax/__init__.py", "combinax/py.typed"}
    assert f"{DIST_INFO}/licenses/LICENSE" in names


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{DIST_INFO}/METADATA").decode())
    assert metadata["Name"] == "combinax"
    assert metadata["Version"] == combinax.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    extras = metadata.get_all("Provides-Extra")
    assert extras is not None
    assert set(extras) == {"test", "notebooks", "data", "pretrained", "bench"}


def test_the_wheel_works_beside_a_users_own_modules(installed: Path, project: Path) -> None:
    script = project / "script.py"
    script.write_text(
        "import combinators, models, train\n"
        "import combinax.combinators, combinax.models, combinax.train\n"
        "print(combinators.OWNER, models.OWNER, train.OWNER)\n"
        "print(combinax.__file__, combinax.models.__file__, sep='\\n')\n"
    )
    owners, *files = run(sys.executable, script, cwd=project, python_path=installed).splitlines()
    assert owners == "user user user"
    assert [Path(file).relative_to(installed).as_posix() for file in files] == [
        "combinax/__init__.py",
        "combinax/models/__init__.py",
    ]


def test_the_commands_of_the_wheel(installed: Path, project: Path) -> None:
    command = installed / "bin" / "combinax"
    version = run(command, "--version", cwd=project, python_path=installed)
    assert combinax.__version__ in version
    for start in ([command], [sys.executable, "-m", "combinax.train"]):
        shown = run(*start, "--help", cwd=project, python_path=installed)
        assert "recall" in shown


def test_importing_the_words_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, combinax.combinators\n"
        "heavy = {'flax.nnx', 'matplotlib', 'orbax', 'treescope', 'typer'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    assert run(sys.executable, "-c", code, cwd=tmp_path).strip() == ""


def test_no_module_hides_the_word_of_its_name(tmp_path: Path) -> None:
    # combinators/score.py defines score: importing the module late must not rebind the word.
    code = (
        "import importlib, pkgutil, types\n"
        "import combinax.combinators as words\n"
        "for module in pkgutil.walk_packages(words.__path__, words.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        "public = {name: getattr(words, name) for name in words.__all__}\n"
        "print(*(name for name, word in public.items() if isinstance(word, types.ModuleType)))"
    )
    assert run(sys.executable, "-c", code, cwd=tmp_path).strip() == ""
