"""Entry point of the pack: serves it to the engine until that ends it.

The engine runs this folder with `python -m pulumi.policy`, from the directory of the program that is checked. On
sys.path are then this folder and that directory, so the checkout is added here, first, in case it is not installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pulumi_policy import EnforcementLevel, PolicyPack

from policies.pack import NAME, POLICIES

if __name__ == "__main__":
    PolicyPack(NAME, POLICIES, EnforcementLevel.MANDATORY)  # does not return
