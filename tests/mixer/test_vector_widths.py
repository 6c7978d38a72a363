"""The kernels are one source for vectors of 4, 8 and 16 lanes; this machine runs the widest by itself."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.kernels


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the narrower ones are chosen by flags for x86")
@pytest.mark.parametrize(("architecture", "name"), [("x86-64-v3", "AVX2"), ("x86-64-v2", "SSE")])
def test_narrower_vectors_pass_the_same_tests(architecture, name, tmp_path):
    where = {"FLARE_CACHE": str(tmp_path), "FLARE_CXXFLAGS": f"-march={architecture}"}

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", *words], env=os.environ | where, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert f"({name})" in run("flare.mixer.native")
    told = run("pytest", "-q", "-m", "kernels and not slow", "tests/mixer/test_native.py", "tests/models/test_fused.py")
    assert "skipped" not in told
