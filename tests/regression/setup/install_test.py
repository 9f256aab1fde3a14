"""What an installation and the packages contain, tried in places where the source tree is unknown."""

import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path

from runs import BIN, HERE, SCRATCH

BUILD = BIN.parent
PREFIX = SCRATCH / "prefix"
PROGRAMS = sorted(path.name for path in BIN.glob("trireme-*"))
BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_trireme "$1" 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


def call(*words, **options):
    """The standard output of a command that must succeed."""
    result = subprocess.run([str(word) for word in words], capture_output=True, text=True,
                            check=False, timeout=500, **options)
    if result.returncode != 0:
        raise AssertionError(f"{words} ended with {result.returncode}\n{result.stdout}\n"
                             f"{result.stderr}")
    return result.stdout


def libraries(program):
    """The files that the loader takes for each library of a program."""
    lines = call("ldd", program, env=BARE).splitlines()
    return {words[0]: words[2] for words in map(str.split, lines)
            if len(words) > 2 and words[1] == "=>"}


class Installation(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(PREFIX, ignore_errors=True)
        call("cmake", "--install", BUILD, "--prefix", PREFIX)

    def complete(self, *words):
        path = f"{PREFIX / 'bin'}:{BARE['PATH']}"
        script = PREFIX / "share/bash-completion/completions" / words[0]
        return call("bash", "-c", COMPLETE, "bash", script, *words,
                    env={**BARE, "PATH": path}, cwd=SCRATCH).split()

    def test_every_program_starts_and_has_a_page_and_completion(self):
        self.assertIn("trireme-pretrain", PROGRAMS)
        for program in PROGRAMS:
            with self.subTest(program):
                self.assertIn("commit", call(PREFIX / "bin" / program, "--version", env=BARE))
                page = (PREFIX / "share/man/man1" / f"{program}.1").read_text()
                self.assertIn(".SH SYNOPSIS", page)
                self.assertIn("\\-\\-version", page)
                self.assertIn("--help", self.complete(program, "--hel"))

    def test_the_page_of_the_deck_has_its_keys(self):
        page = (PREFIX / "share/man/man5/trireme-deck.5").read_text()
        for line in call(BIN / "trireme-pretrain", "--help", "deck").splitlines():
            if line and not line.startswith(" "):
                self.assertIn(line.split()[0].replace("-", "\\-"), page)

    def test_decks_are_complete(self):
        deck = PREFIX / "share/trireme/inputs/gpt2-124m.yaml"
        source = HERE.parents[1] / "inputs/gpt2-124m.yaml"
        self.assertEqual(deck.read_bytes(), source.read_bytes())
        self.assertIn("verdict", call(PREFIX / "bin/trireme-pretrain", deck, "--plan", "--ranks", 1,
                                      "--memory", "80GiB", "model.vocab=50257", env=BARE,
                                      cwd=SCRATCH))

    def test_completion_knows_commands_options_keys_and_values(self):
        for words, expected in [
                (("trireme-pretrain", "deck.yaml", "model.hid"), ["model.hidden="]),
                (("trireme-pretrain", "deck.yaml", "precision.compute", "=", "b"), ["bf16"]),
                (("trireme-pretrain", "deck.yaml", "run.deterministic", "=", ""), ["true", "false"]),
                (("trireme-report", "expo"), ["export"]),
                (("trireme-report", "plot", "--log-l"), ["--log-loss"]),
                (("trireme-bench", "step", "--repea"), ["--repeats"])]:
            with self.subTest(" ".join(words)):
                self.assertEqual(self.complete(*words), expected)

    def test_uninstall_leaves_no_file(self):
        call("cmake", f"-DMANIFEST={BUILD / 'install_manifest.txt'}", "-P",
             HERE.parents[1] / "cmake/install/uninstall.cmake")
        self.assertEqual([path for path in PREFIX.rglob("*") if not path.is_dir()], [])
        self.setUpClass()


class Packages(unittest.TestCase):
    def package(self, *words):
        folder = SCRATCH / "packages"
        shutil.rmtree(folder, ignore_errors=True)
        call("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder, "-D",
             "CPACK_STRIP_FILES=OFF", *words)
        return folder

    def test_the_archive_has_its_libraries_wherever_it_is_unpacked(self):
        folder = self.package("-G", "TGZ")
        archive, = folder.glob("*.tar.gz")
        place = SCRATCH / "another-place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        call("tar", "xzf", archive, "-C", place)
        root, = place.iterdir()
        taken = libraries(root / "bin/trireme-pretrain")
        for name in "libhdf5_openmpi.so", "libyaml-cpp.so", "libfmt.so", "libsz.so":
            files = [file for library, file in taken.items() if library.startswith(name)]
            self.assertTrue(files, name)
            for file in files:
                self.assertTrue(Path(file).resolve().is_relative_to(root.resolve()), file)
        # The cluster's own MPI and C library.
        for name in "libmpi.so", "libc.so":
            files = [file for library, file in taken.items() if library.startswith(name)]
            self.assertTrue(files and not files[0].startswith(str(root)), name)
        self.assertIn("commit", call(root / "bin/trireme-pretrain", "--version", env=BARE))
        shutil.rmtree(place)
        shutil.rmtree(folder)

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "no dpkg-shlibdeps")
    def test_the_debian_package_names_what_it_needs(self):
        folder = self.package("-G", "DEB", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=zstd")
        package, = folder.glob("*.deb")
        depends = call("dpkg-deb", "--field", package, "Depends")
        for name in "openmpi-bin", "libhdf5-openmpi", "libopenblas", "libyaml-cpp":
            self.assertIn(name, depends)
        files = call("dpkg-deb", "--contents", package)
        for name in ("usr/bin/trireme-pretrain", "usr/share/man/man1/trireme-pretrain.1",
                     "usr/share/trireme/inputs/quickstart.yaml",
                     "usr/share/bash-completion/completions/trireme-sweep"):
            self.assertIn(f"./{name}", files)
        shutil.rmtree(folder)


class WithoutRoot(unittest.TestCase):
    """The lists of packages for Spack and conda."""

    # What dependencies.sh calls a package, and its names on conda-forge and in Spack.
    NAMES = {"g++": ("cxx-compiler", "cxx"), "cmake": ("cmake", "cmake"), "ninja-build": ("ninja", "ninja"), "pkg-config": ("pkg-config", "pkgconfig"),
             "openmpi-bin": ("openmpi", "openmpi"), "libopenmpi-dev": ("openmpi", "openmpi"), "libhdf5-openmpi-dev": ("hdf5", "hdf5"),
             "libopenblas-dev": ("openblas", "openblas"), "libyaml-cpp-dev": ("yaml-cpp", "yaml-cpp"),
             "libboost-program-options-dev": ("libboost-devel", "boost"), "libfmt-dev": ("fmt", "fmt"),
             "nlohmann-json3-dev": ("nlohmann_json", "nlohmann-json"), "libpcre2-dev": ("pcre2", "pcre2"), "libicu-dev": ("icu", "icu4c"),
             "libsentencepiece-dev": ("sentencepiece", "sentencepiece"), "zlib1g-dev": ("zlib", "zlib-api"), "libarchive-dev": ("libarchive", "libarchive"),
             "libedit-dev": ("libedit", "libedit"), "libcpp-httplib-dev": ("cpp-httplib", "cpp-httplib"),
             "libcld2-dev": (None, None)}  # neither has it: languages are not told apart there
    TREE = HERE.parents[1]

    def test_the_lists_have_what_the_system_needs(self):
        needed = call(self.TREE / "cmake/dependencies.sh", "--list").split()
        self.assertEqual(set(needed), set(self.NAMES))
        conda = re.findall(r"^  - ([\w-]+)", (self.TREE / "cmake/install/conda/environment.yaml").read_text(), re.M)
        spack = re.findall(r'^    depends_on\("([\w-]+)', (self.TREE / "cmake/install/spack/trireme/package.py").read_text(), re.M)
        for package, (of_conda, of_spack) in self.NAMES.items():
            if of_conda:
                self.assertIn(of_conda, conda, package)
                self.assertIn(of_spack, spack, package)

    def test_the_build_in_a_conda_environment(self):
        script = self.TREE / "cmake/install/conda/build.sh"
        alone = subprocess.run([script], env=BARE, capture_output=True, text=True, check=False)
        self.assertEqual((alone.returncode, alone.stdout), (1, ""))
        self.assertIn("no conda environment is active (CONDA_PREFIX is not set): conda activate", alone.stderr)
        fakes = SCRATCH / "fakes"
        fakes.mkdir(parents=True, exist_ok=True)
        (fakes / "cmake").write_text('#!/bin/sh\necho "cmake $*"\n')
        (fakes / "cmake").chmod(0o755)
        lines = call(script, "-DTRIREME_CUDA=OFF", env={**BARE, "PATH": f"{fakes}:{BARE['PATH']}", "CONDA_PREFIX": "/env"}).splitlines()
        self.assertEqual(lines[0], "cmake --preset release -DTRIREME_TESTS=OFF -DCMAKE_PREFIX_PATH=/env -DCMAKE_INSTALL_PREFIX=/env -DTRIREME_CUDA=OFF")
        self.assertRegex(lines[1], r"cmake --build --preset release --parallel \d+")
        self.assertEqual(lines[2:], ["cmake --install build/release"])


if __name__ == "__main__":
    os.makedirs(SCRATCH, exist_ok=True)
    unittest.main()
