"""`python -m longstep.sandbox`: one line saying whether commands can be run safely here. Exit code 1 if not."""

import sys
import tempfile
from pathlib import Path

from longstep.errors import SandboxError
from longstep.sandbox.bubblewrap import self_check
from longstep.sandbox.unsafe import open_sandbox

if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory() as folder:
            print(self_check(open_sandbox(), Path(folder)))
    except SandboxError as error:
        sys.exit(str(error))
