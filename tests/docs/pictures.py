"""Make the pictures of the tutorials anew, by running the pages: `python -m tests.docs.pictures [PAGE …]`."""

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.docs import test_pages
from tests.docs.pages import PAGES, Page, read


def keep(page: Page, made: Path) -> None:
    """Take the place of the test's comparison: copy the pictures."""
    for name in test_pages.PICTURE.findall(page.text):
        test_pages.PICTURES.mkdir(exist_ok=True)
        shutil.copy(made / name, test_pages.PICTURES / name)
        print(test_pages.PICTURES / name)


def main(names: list[str]) -> None:
    pages = [page for path in PAGES if test_pages.PICTURE.search((page := read(path)).text)]
    for page in (page for page in pages if not names or page.path.stem in names):
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            patch.setattr(test_pages, "demand_pictures", keep)
            test_pages.run_page(page, Path(folder), patch, slow=False)


if __name__ == "__main__":
    main(sys.argv[1:])
