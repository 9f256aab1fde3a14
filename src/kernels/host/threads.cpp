#include "kernels/host/threads.hpp"

#include <cblas.h>
#include <omp.h>

namespace trireme::kernels::host {

void use_threads(int threads) {
  omp_set_num_threads(threads);
  openblas_set_num_threads(1);
}

}  // namespace trireme::kernels::host
