"""Make the pictures of pages anew, by running the pages: `python -m tests.docs.pictures [PAGE …]`."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.docs import test_pages
from tests.docs.pages import PAGES, Page, read


def keep(page: Page, made: Path) -> None:
    """Take the place of the test's comparison: copy the pictures."""
    folder = test_pages.PICTURES / page.path.parent.name
    folder.mkdir(exist_ok=True)
    for name in test_pages.pictures_of(page):
        shutil.copy(made / name, folder / name)
        print(folder / name)


def main(names: list[str]) -> None:
    pages = [page for path in PAGES if test_pages.pictures_of(page := read(path))]
    for page in (page for page in pages if not names or page.path.stem in names):
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            patch.setattr(test_pages, "demand_pictures", keep)
            test_pages.run_page(page, Path(folder), patch, slow=False)


if __name__ == "__main__":
    main(sys.argv[1:])
