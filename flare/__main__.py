"""`python -m flare`, which is also what `torchrun -m flare train ...` starts on every rank."""

import sys

from flare.cli import main

sys.exit(main())
