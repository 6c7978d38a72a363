"""Wheels with the compiled kernels inside, on request:  FLARE_BUILD_NATIVE=1 pip wheel --no-build-isolation --no-deps .

Without FLARE_BUILD_NATIVE=1 the wheel is plain Python with the sources of the kernels, which are built on first use.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if os.environ.get("FLARE_BUILD_NATIVE") != "1" or version == "editable":  # a checkout builds on first use
            return
        if importlib.util.find_spec("torch") is None:
            self.app.abort(
                "FLARE_BUILD_NATIVE=1: the kernels share torch's OpenMP, and this build has no torch. "
                "Install torch and hatchling, then:  pip wheel --no-build-isolation --no-deps ."
            )
        self.scratch = tempfile.TemporaryDirectory()
        command = [sys.executable, "-m", "flare.mixer.native", "--into", self.scratch.name]
        if subprocess.run(command, cwd=self.root, check=False).returncode:
            self.app.abort("FLARE_BUILD_NATIVE=1: the kernels could not be built, see above")
        library = next(Path(self.scratch.name).glob("kernels-*.so"))
        build_data["force_include"][str(library)] = f"flare/mixer/native/{library.name}"
        build_data["pure_python"] = False
        # Any Python 3 will do, for ctypes loads the library; the system and the processor must be this one's.
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "scratch"):
            self.scratch.cleanup()
