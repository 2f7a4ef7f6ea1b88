"""Name the platform in the tag of a wheel that holds compiled libraries; all else is in pyproject.toml.

Without such libraries the tag is ``py3-none-any``. `deploy/release` names the platform by ``--plat-name``.
"""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

LIBRARIES = ("bpf/objects/libbpf.so.1", "tools/hybrid_io/objects/*.so")


class WithLibraries(Distribution):
    """Belongs into the folder of platform-specific packages if a library was built before."""

    def has_ext_modules(self) -> bool:
        return any(True for pattern in LIBRARIES for _ in Path(__file__).parent.glob(pattern))


class AnyPython(bdist_wheel):
    """A wheel for every Python 3: the libraries are loaded by ctypes."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(distclass=WithLibraries, cmdclass={"bdist_wheel": AnyPython})
