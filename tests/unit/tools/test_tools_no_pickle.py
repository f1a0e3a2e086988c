"""The pickle check finds what it should and nothing else."""

from __future__ import annotations

import pytest

from tools.check_no_pickle import find, main


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, pickle as p",
        "from pickle import loads",
        "def f():\n    import dill",
        "import joblib.numpy_pickle",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=x)",
    ],
)
def test_finds(source: str):
    assert len(list(find(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import json",
        "from common.pickles import x",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "np.load(path, allow_pickle=False)",
        "json.load(file)",
        "yaml.safe_load(text)",
        "x = 'import pickle'",
    ],
)
def test_leaves_alone(source: str):
    assert list(find(source)) == []


def test_names_the_line():
    assert list(find("import os\n\nimport shelve\n")) == [(3, "imports shelve")]


def test_the_repository_is_clean(capsys: pytest.CaptureFixture[str]):
    assert main() == 0, capsys.readouterr().out
