"""The process around the kernels: one pool of threads, idle at rest, and a cache that may be read-only."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_numba_and_torch_run_on_the_same_threads() -> None:
    out = run_python(
        """
import os, torch
from kernels import cpu
def threads(): return set(os.listdir("/proc/self/task"))
torch.set_num_threads(2)
x = torch.randn(400, 400)
before = threads()
x @ x
torch.sin(torch.randn(1000, 1000))
torchs = threads()
cpu.rms_norm(torch.randn(400, 400), torch.randn(400), 1e-5)
print(len(torchs - before), len(threads() - torchs))
"""
    )
    assert out.split()[1] == "0"


def test_where_nothing_can_be_cached_the_kernels_still_run() -> None:
    from kernels.cpu import jit

    def add(a: float) -> float:
        return a + 1

    class Unwritable:
        @staticmethod
        def from_function(function: object, source: str) -> None:
            return None

    from numba.core import caching

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(caching.CacheImpl, "_locator_classes", [Unwritable])
        compiled = jit.kernel("float64(float64)")(add)
    assert compiled(1.0) == 2.0


def test_a_change_in_any_file_of_the_package_leads_to_another_cache(tmp_path: Path) -> None:
    """A kernel holds the machine code of helpers from other files, whose changes numba does not notice."""
    from kernels.cpu import jit

    package, base = tmp_path / "package", tmp_path / "base"
    package.mkdir()
    (package / "kernel.py").write_text("a")
    (package / "helper.py").write_text("b")
    before = jit.cache_folder(package, base)
    assert before == jit.cache_folder(package, base)
    assert before.parent == base
    (package / "helper.py").write_text("c")
    assert jit.cache_folder(package, base) != before


def test_the_kernels_are_cached_in_the_folder_of_their_source() -> None:
    import numba

    from kernels.cpu import jit

    package = Path(jit.__file__).parent
    folder = Path(numba.config.CACHE_DIR)
    assert folder == jit.cache_folder(package, folder.parent)
    assert list(folder.glob("**/*.nbi"))
