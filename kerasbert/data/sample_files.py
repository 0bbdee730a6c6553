"""Data sets that come with the package, for examples and lessons."""

import os

from kerasbert.base.paths import packaged


def sample_file(name: str) -> str:
    """Return the path of a data file or folder that comes with the package.

    - "sms_spam.csv": 4,837 English text messages of the SMS Spam Collection (Almeida and Hidalgo,
      CC BY 4.0) in the columns `text` and `label`, "ham" or "spam".
    - "library": rules and news of an invented town library, a folder of Markdown files per
      language: `en`, `ko` and `ja`.

    >>> import csv
    >>> with open(sample_file("sms_spam.csv"), encoding="utf-8", newline="") as file:
    ...     rows = list(csv.DictReader(file))
    >>> rows[1]
    {'text': 'Ok lar... Joking wif u oni...', 'label': 'ham'}

    Args:
        name: string. Name of the file or folder.

    Returns:
        string. Its path, in the installed package or in the checkout.

    Raises:
        ValueError: if the package has no data of this name.
    """
    folder = packaged("sample_files", "examples/data")
    names = sorted(file.name for file in folder.iterdir() if file.name != "README.md")
    if name not in names:
        raise ValueError(f"The package has no data named {name!r}; it has {', '.join(names)}.")
    return os.path.normpath(folder / name)
