"""The documentation runs: the example of every docstring, and the README from top to bottom."""

import doctest
import importlib
import pydoc
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import combinax.combinators
import combinax.models
from combinax.combinators import Predicate, Term

ROOT = Path(__file__).parent.parent
FOLDERS = ("combinators", "models", "train")
MODULES = ["combinax"] + [
    ".".join(("combinax", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
]
README = ROOT / "README.md"


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    # pytest --doctest-modules would import the raw folders, whose relative imports then fail.
    # An example may use jax, jnp and the vocabulary without importing them.
    module = importlib.import_module(name)
    words = {word: getattr(combinax.combinators, word) for word in combinax.combinators.__all__}
    given = {"jax": jax, "jnp": jnp, **words, **vars(module)}
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, globs=given, optionflags=options).failed == 0


def test_help_of_a_value_is_its_own() -> None:
    """help(greedy) tells of greedy, not of the class that it shares with others."""
    public = {
        word: getattr(module, word)
        for module in (combinax.combinators, combinax.models)
        for word in module.__all__
    }
    values = {w: v for w, v in public.items() if isinstance(v, (Term, Predicate))}
    texts = {pydoc.plain(pydoc.render_doc(value)).partition("\n")[2] for value in values.values()}
    assert {"greedy", "causal", "identity", "unit", "mean_pool"} < set(values)
    assert len(texts) == len(values) and "0 where x is 0" in pydoc.render_doc(public["unit"])


def test_every_word_has_an_example() -> None:
    values = {word: getattr(combinax.combinators, word) for word in combinax.combinators.__all__}
    constants = combinax.combinators.Term, combinax.combinators.Predicate
    words = [name for name, v in values.items() if name.islower() and not isinstance(v, constants)]
    assert [name for name in words if ">>>" not in values[name].__doc__] == []


def test_readme_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = README.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert blocks, "README.md shows no python"
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        above = text.count("\n", 0, block.start(1))  # so that an error names the README's line
        exec(compile("\n" * above + block[1], str(README), "exec"), namespace)


def test_readme_names_commands_that_exist() -> None:
    commands = set(re.findall(r"^(?:\$ )?make ([a-z]+)", README.read_text(), re.MULTILINE))
    assert "test" in commands
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert commands <= targets


def test_readme_links_lead_somewhere() -> None:
    text = README.read_text()
    headings = {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    }
    links = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    inside = [link for link in links if not re.match(r"[a-z]+:", link)]
    missing = [
        link
        for link in inside
        for path, _, anchor in [link.partition("#")]
        if not (ROOT / path).exists() or (not path and anchor not in headings)
    ]
    assert missing == []
