"""The configure run of a wheel, and what it says about GPU code. Nothing is compiled but CMake's own checks."""
from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def configure(folder, *defines):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    done = subprocess.run(["cmake", "-S", str(ROOT), "-B", str(folder), "-DAQUIFER_WHEEL=ON", "-DAQUIFER_TESTS=OFF",
                           "-DAQUIFER_BENCHMARKS=OFF", "-DAQUIFER_NVCC=", *defines], text=True, capture_output=True)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def gpu(tmp_path):
    """The host's, as far as the configure run can see."""
    device = tmp_path / "nvidiactl"
    device.touch()
    return f"-DAQUIFER_GPU_DEVICE={device}"


def test_a_wheel_for_a_host_with_a_gpu_is_not_built_without_gpu_code_in_silence(tmp_path, gpu):
    code, said = configure(tmp_path / "build", gpu)
    assert code != 0
    for words in ("the wheel would have no GPU code: no CUDA compiler found", "tools/install-nvcc", "CUDA 13.0",
                  "pip install . -C cmake.define.AQUIFER_CUDA=OFF"):
        assert words in said


def test_a_wheel_without_gpu_code_is_built_where_somebody_wants_it(tmp_path, gpu):
    code, said = configure(tmp_path / "build", gpu, "-DAQUIFER_CUDA=OFF")
    assert code == 0 and "CUDA: off (AQUIFER_CUDA=OFF)" in said


def test_a_wheel_for_a_host_without_a_gpu_needs_no_cuda_compiler(tmp_path):
    code, said = configure(tmp_path / "build", f"-DAQUIFER_GPU_DEVICE={tmp_path}/none")
    assert code == 0 and "CUDA: off (no CUDA compiler found" in said
