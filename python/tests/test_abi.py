"""The declarations of _native.py are those of the C header."""
from __future__ import annotations

import ctypes
import pathlib
import re
import shutil
import subprocess

import pytest

from aquifer import _native

HEADER = pathlib.Path(__file__).resolve().parents[2] / "include" / "aquifer" / "aquifer.h"


def _c_name(name: str) -> str:
    return "aquifer_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _structs():
    return {name: made for name, made in vars(_native).items()
            if isinstance(made, type) and issubclass(made, ctypes.Structure) and made is not ctypes.Structure}


def test_structs_have_the_same_fields_at_the_same_places(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for name, made in _structs().items():
        c_name = _c_name(name)
        lines.append(f'printf("{name} %zu\\n", sizeof({c_name}));')
        lines += [f'printf("{name}.{field[0]} %zu\\n", offsetof({c_name}, {field[0]}));'
                  for field in made._fields_]
    program = tmp_path / "sizes.c"
    program.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{ {" ".join(lines)} return 0; }}')
    subprocess.run([compiler, str(program), "-o", str(tmp_path / "sizes")], check=True)
    printed = subprocess.run([str(tmp_path / "sizes")], check=True, text=True, capture_output=True).stdout
    expected = dict(line.rsplit(" ", 1) for line in printed.splitlines())
    ours = {}
    for name, made in _structs().items():
        ours[name] = str(ctypes.sizeof(made))
        for field in made._fields_:
            ours[f"{name}.{field[0]}"] = str(getattr(made, field[0]).offset)
    assert ours == expected


def test_every_function_is_declared_with_as_many_arguments_as_in_c():
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    counted = {name: 0 if arguments.strip() == "void" else arguments.count(",") + 1
               for name, arguments in re.findall(r"\b(aquifer_\w+)\s*\(([^)]*)\)", text)}
    for name, (_, arguments) in _native._FUNCTIONS.items():
        assert counted[name] == len(arguments), name
