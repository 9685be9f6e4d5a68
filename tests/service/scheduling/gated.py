"""`rationale serve` whose explanations wait: `python -m tests.service.scheduling.gated FILE serve …`.

What is under way stays so for as long as a test needs it, on a fast machine and on a slow one.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # as the command line does

from rationale_service.cli.main import app
from rationale_service.engine.backends import onnxruntime as embedded


def main() -> None:
    gate = Path(sys.argv.pop(1))
    module: Any = embedded
    run = module.run

    def held(entry: Any, *remainder: Any) -> Any:
        while entry.manifest is not None and not gate.exists():
            time.sleep(0.01)
        return run(entry, *remainder)

    module.run = held
    app()


if __name__ == "__main__":
    main()
