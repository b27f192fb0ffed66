"""A text of 540 lines that a tiny model learns."""

import pytest

PROSE = "".join(
    f"the {a} {b} sat on the {c} mat.\n" for a in range(9) for b in "xyz" for c in range(20)
)


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "prose.txt"
    file.write_text(PROSE)
    return file
