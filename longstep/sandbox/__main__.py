"""`python -m longstep.sandbox`: one line saying whether commands can be run safely here. Exit code 1 if not."""

import sys
import tempfile
from pathlib import Path

from longstep.errors import SandboxError
from longstep.sandbox.bubblewrap import Bubblewrap, self_check

if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory() as folder:
            print(self_check(Bubblewrap(), Path(folder)))
    except SandboxError as error:
        sys.exit(str(error))
