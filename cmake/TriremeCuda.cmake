# The CUDA backend: built when a toolkit of version 12 or newer with the headers of cuBLASLt and NCCL is there. The
# runtime is linked statically, cuBLASLt and NCCL are loaded when a run first needs them, so that the same programs
# start on machines without a GPU.
include(CheckLanguage)
set(TRIREME_WITH_CUDA OFF)
set(TRIREME_BACKENDS "host")
set(TRIREME_CUDA_MISSING "")

if(NOT TRIREME_CUDA STREQUAL "OFF")
  find_program(TRIREME_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  # An nvcc that refuses this host's compiler, as old ones do a new one, is as good as none.
  if(TRIREME_NVCC AND NOT CMAKE_CUDA_COMPILER)
    set(ENV{CUDACXX} ${TRIREME_NVCC})
    check_language(CUDA)
  endif()
  if(TRIREME_NVCC AND NOT CMAKE_CUDA_COMPILER)
    set(TRIREME_CUDA_MISSING "${TRIREME_NVCC} does not work with this C++ compiler: its words are in the logs in CMakeFiles")
  elseif(TRIREME_NVCC)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    find_path(TRIREME_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_path(TRIREME_CUBLASLT_INCLUDE cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    if(CUDAToolkit_VERSION VERSION_LESS 12)
      set(TRIREME_CUDA_MISSING "CUDA ${CUDAToolkit_VERSION} is older than 12")
    elseif(NOT TRIREME_NCCL_INCLUDE)
      set(TRIREME_CUDA_MISSING "no nccl.h was found")
    elseif(NOT TRIREME_CUBLASLT_INCLUDE)
      set(TRIREME_CUDA_MISSING "no cublasLt.h was found")
    else()
      set(TRIREME_WITH_CUDA ON)
      set(TRIREME_BACKENDS "host, cuda (CUDA ${CUDAToolkit_VERSION})")
    endif()
  else()
    set(TRIREME_CUDA_MISSING "no nvcc was found")
  endif()
  if(NOT TRIREME_WITH_CUDA)
    if(TRIREME_CUDA STREQUAL "ON")
      message(FATAL_ERROR "TRIREME_CUDA=ON, but ${TRIREME_CUDA_MISSING}; AUTO builds the host backend alone.")
    endif()
    set(TRIREME_BACKENDS "host (no CUDA: ${TRIREME_CUDA_MISSING})")
  endif()
endif()

if(TRIREME_WITH_CUDA)
  # CMake 3.25 and older know neither nvcc's C++20 nor the architecture 90a, which is given below by hand.
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  # What modules that call the CUDA runtime link.
  add_library(trireme_cuda INTERFACE)
  target_include_directories(trireme_cuda SYSTEM INTERFACE
    ${CUDAToolkit_INCLUDE_DIRS} ${TRIREME_NCCL_INCLUDE} ${TRIREME_CUBLASLT_INCLUDE})
  target_link_libraries(trireme_cuda INTERFACE CUDA::cudart_static ${CMAKE_DL_LIBS} Threads::Threads)
  target_compile_definitions(trireme_cuda INTERFACE TRIREME_WITH_CUDA)
  # Code for compute capability 8.0, which 8.6 and 8.9 run too, its PTX for what is newer than 9.0, and 9.0a.
  set(TRIREME_CUDA_CODE
    --generate-code=arch=compute_80,code=[compute_80,sm_80] --generate-code=arch=compute_90a,code=[sm_90a])
  # The same from one PTX, which takes a third less time: for sources with nothing of Hopper's own. That the code stays the
  # same was seen in attention's heads of 32, its fp32 kernels and the optimizer's, instruction by instruction.
  set(TRIREME_CUDA_COMMON_CODE --generate-code=arch=compute_80,code=[compute_80,sm_80,sm_90])
endif()

# trireme_cuda_sources(TARGET SOURCES... [COMMON SOURCES...]): adds .cu files to a module, compiled for the GPUs above, one
# after the other, so that their reports do not mix; those after COMMON from one PTX. The test compile_ptxas reads the reports.
function(trireme_cuda_sources target)
  cmake_parse_arguments(arg "" "" "COMMON" ${ARGN})
  target_sources(${target} PRIVATE ${arg_UNPARSED_ARGUMENTS} ${arg_COMMON})
  set_property(SOURCE ${arg_UNPARSED_ARGUMENTS} APPEND PROPERTY COMPILE_OPTIONS ${TRIREME_CUDA_CODE})
  if(arg_COMMON)
    set_property(SOURCE ${arg_COMMON} APPEND PROPERTY COMPILE_OPTIONS ${TRIREME_CUDA_COMMON_CODE})
  endif()
  set_property(TARGET ${target} PROPERTY CUDA_COMPILER_LAUNCHER
    ${PROJECT_SOURCE_DIR}/cmake/keep_ptxas_report.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
  target_link_libraries(${target} PUBLIC trireme_cuda)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-O3 --expt-relaxed-constexpr -Xptxas=-v
      -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1  # fmt 9 mistakes nvcc for a compiler without them
      -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TRIREME_WERROR}>>:-Werror=all-warnings>)
endfunction()
