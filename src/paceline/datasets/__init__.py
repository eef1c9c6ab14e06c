"""Data sets for the examples and the demo. The user need not fetch anything.

`fashion_mnist` tries these providers in order: the directory that the caller names; the cache; the directory of the
Debian package `dataset-fashion-mnist`; a download over https; and the Debian package itself, fetched with a private apt
state (neither root nor an earlier `apt-get update` is needed). Every file is checked against a SHA-256 of its decoded
content before an image is used. Fetched files stay in the cache.

`digits`, `iris`, `wine`, `breast_cancer` and `diabetes` are in the wheel of scikit-learn (`pip install
'paceline[datasets]'`). The result of each function has a line on its licence.

Importing this package imports neither torch nor numpy. It finds and decodes files; `paceline.data` reads data sets in a
job.
"""

from paceline.datasets.images import GENERATED, Splits, fashion_mnist, generated_ten_classes
from paceline.datasets.small import breast_cancer, diabetes, digits, iris, wine

__all__ = [
    "GENERATED",
    "Splits",
    "breast_cancer",
    "diabetes",
    "digits",
    "fashion_mnist",
    "generated_ten_classes",
    "iris",
    "wine",
]
