"""The recipe of Trireme for Spack, which builds a source tree:

spack repo create trireme-repo && cp -r cmake/install/spack/trireme trireme-repo/packages/
spack repo add trireme-repo && spack dev-build --source-path PATH-OF-THE-TREE trireme@main +cuda cuda_arch=90
"""

try:
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
    from spack_repo.builtin.build_systems.cuda import CudaPackage
except ImportError:  # before Spack 1.0 spack.package has them
    pass

from spack.package import *


class Trireme(CMakePackage, CudaPackage):
    """Pretrains transformers with tensor, pipeline and data parallelism as a native MPI program."""

    license("Apache-2.0")
    maintainers()

    version("main")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("openmpi@4.1:")
    depends_on("hdf5@1.10:1.14 +mpi")
    depends_on("openblas")
    depends_on("yaml-cpp@0.7:")
    depends_on("boost@1.74: +program_options")
    depends_on("fmt@9:")
    depends_on("nlohmann-json@3.11:")
    depends_on("pcre2")
    depends_on("icu4c")
    depends_on("sentencepiece")
    depends_on("zlib-api")
    depends_on("libarchive")
    depends_on("libedit")
    depends_on("cpp-httplib")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl", when="+cuda")
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"nccl cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")

    generator("ninja")

    def cmake_args(self):
        """CMake finds the rest by its prefixes."""
        return [self.define("TRIREME_TESTS", False),
                self.define("TRIREME_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF")]
