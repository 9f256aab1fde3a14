# Copies the libraries that the installed programs load to ../lib of them, but for those that belong to the
# cluster: the C and C++ libraries, MPI with what it loads, CUDA.
set(bin ${CMAKE_INSTALL_PREFIX}/bin)
set(lib ${CMAKE_INSTALL_PREFIX}/lib)
file(GLOB programs ${bin}/trireme-*)
file(GLOB modules ${lib}/libtrireme*.so)
file(GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${programs}
  LIBRARIES ${modules}
  RESOLVED_DEPENDENCIES_VAR resolved
  UNRESOLVED_DEPENDENCIES_VAR unresolved
  PRE_EXCLUDE_REGEXES
    "^ld-linux" "^lib(c|m|dl|rt|pthread|resolv|util|stdc\\+\\+|gcc_s)\\.so"
    "^lib(mpi|open-rte|open-pal|pmix|hwloc|event|udev|nl-|numa|ibverbs|rdmacm|fabric|psm|uc[mpst])"
    "^lib(cuda|cudart|cublas|cublasLt|nccl|nvidia|nvrtc)"
  POST_EXCLUDE_REGEXES "/libtrireme")
if(unresolved)
  message(FATAL_ERROR "these libraries are not found: ${unresolved}")
endif()
foreach(library IN LISTS resolved)
  file(COPY ${library} DESTINATION ${lib} FOLLOW_SYMLINK_CHAIN)
endforeach()
