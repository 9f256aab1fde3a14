# What every program of this folder is compiled with.
add_compile_definitions(TRIREME_VERSION="${PROJECT_VERSION}")

# What --version prints. The commit is looked up in every build; the library is compiled again only if it has changed.
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
add_custom_target(trireme_commit
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${generated}/trireme_commit.hpp
          -P ${PROJECT_SOURCE_DIR}/cmake/write_commit.cmake
  BYPRODUCTS ${generated}/trireme_commit.hpp
  COMMENT "Looking up the commit")
add_library(trireme_version STATIC common/version.cpp)
add_dependencies(trireme_version trireme_commit)
target_compile_definitions(trireme_version PRIVATE TRIREME_MARCH="${TRIREME_MARCH}")
target_include_directories(trireme_version PRIVATE ${generated})
target_include_directories(trireme_version SYSTEM PRIVATE
  ${HDF5_C_INCLUDE_DIRS} ${MPI_CXX_INCLUDE_DIRS} ${TRIREME_OPENBLAS_INCLUDE})
target_link_libraries(trireme_version PRIVATE trireme_flags fmt::fmt)
if(TRIREME_WITH_CUDA)
  target_compile_definitions(trireme_version PRIVATE TRIREME_WITH_CUDA)
  target_include_directories(trireme_version SYSTEM PRIVATE
    ${CUDAToolkit_INCLUDE_DIRS} ${TRIREME_NCCL_INCLUDE})
endif()
