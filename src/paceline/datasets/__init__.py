"""Data sets for the examples and the demo. The user need not fetch anything.

`fashion_mnist` tries these providers in order: the directory that the caller names; the cache; the directory of the
Debian package `dataset-fashion-mnist`; a download over https; and the Debian package itself, fetched with a private apt
state (neither root nor an earlier `apt-get update` is needed). Every file is checked against a SHA-256 of its decoded
content before an image is used. Fetched files stay in the cache.

Importing this package imports neither torch nor numpy. It finds and decodes files; `paceline.data` reads data sets in a
job.
"""

from paceline.datasets.images import GENERATED, Splits, fashion_mnist, generated_ten_classes

__all__ = ["GENERATED", "Splits", "fashion_mnist", "generated_ten_classes"]
