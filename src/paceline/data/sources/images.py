"""Folders of images: the folder of an image is its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.data.files.places import Files
from paceline.data.sources.base import FileSource, kind_of
from paceline.data.sources.decoding import Undecodable, image
from paceline.data.sources.extras import need
from paceline.errors import DataError


class ImageFolder(FileSource):
    """Images as uint8 (channels, height, width), with the number of their class: ``{"image": …, "label": …}``.

    The classes are the folders that hold images, sorted by name. Images of different sizes need `image_size`, or a
    collate function of your own.
    """

    def __init__(self, files: Files, *, image_size: tuple[int, int] | None = None, mode: str = "RGB") -> None:
        need("PIL.Image", "images")
        super().__init__(files, kind_of("images", image_size=image_size, mode=mode))
        folders = [file.name.rpartition("/")[0].rpartition("/")[2] for file in files.files]
        self.classes = sorted(set(folders))
        number_of = {name: k for k, name in enumerate(self.classes)}
        self._labels = [number_of[folder] for folder in folders]
        self._image_size, self._mode = image_size, mode

    @property
    def length(self) -> int:
        """The number of images."""
        return len(self.files)

    @property
    def columns(self) -> Mapping[str, str]:
        """The image, and the number of its class."""
        return {"image": "uint8 (channels, height, width)", "label": f"int, of {len(self.classes)} classes"}

    def where(self, position: int) -> str:
        """The file."""
        return self.files.files[position].name

    def read(self, positions: Sequence[int]) -> Sequence[dict[str, Any]]:
        """As `FileSource.read`."""
        return [{"image": self._image(int(p)), "label": self._labels[int(p)]} for p in positions]

    def _image(self, position: int) -> Any:
        if self.files.files[position].size > 1 << 30:
            raise DataError(
                f"{self.where(position)} has more than 1 GiB, which is no image: leave it out of the pattern"
            )
        try:
            return image(self.files.read(position), self._mode, self._image_size)
        except Undecodable as error:
            raise self.bad(position, str(error)) from None
