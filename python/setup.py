# SPDX-License-Identifier: MIT
"""A wheel that carries libdescant, and the modules for MPI and TLS that this machine can build: any
Python 3 can use it, without a compiler. make builds them, in the folder of the repository that
DESCANT_BUILD names, else build/wheel. A source distribution has what make needs in a folder
`library`."""

import os
import pathlib
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:         # before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE / "library" if (HERE / "library").exists() else HERE.parent
BUILD = os.environ.get("DESCANT_BUILD", "build/wheel")


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        subprocess.run(["make", "-s", f"-j{os.cpu_count()}", f"B={BUILD}", "python-libraries"],
                       cwd=ROOT, check=True)
        package = pathlib.Path(self.build_lib, "descant")
        for library in [ROOT / BUILD / "libdescant.so.0", *(ROOT / BUILD).glob("descant-*.so")]:
            shutil.copy(library, package)


class SourceWithLibrary(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        library = pathlib.Path(base_dir, "library")
        for name in ("src", "include"):
            shutil.copytree(ROOT / name, library / name)
        for name in ("Makefile", "LICENSE"):
            shutil.copy(ROOT / name, library)


class WheelOfAnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Native(Distribution):
    def has_ext_modules(self):
        return True


setup(distclass=Native, cmdclass={
    "build_py": BuildWithLibrary, "sdist": SourceWithLibrary, "bdist_wheel": WheelOfAnyPython})
