# Everything Trireme links, found once. cmake/dependencies.sh names the packages that provide it.
set(MPI_CXX_SKIP_MPICXX TRUE)  # bindings that nothing uses, and that cost half a second a file
find_package(MPI REQUIRED COMPONENTS CXX)
set(HDF5_PREFER_PARALLEL ON)
find_package(HDF5 REQUIRED COMPONENTS C)
if(NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "This HDF5 is serial; Trireme needs a parallel one (Debian: libhdf5-openmpi-dev).")
endif()
add_library(trireme_hdf5 INTERFACE)
target_include_directories(trireme_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(trireme_hdf5 INTERFACE ${HDF5_C_LIBRARIES} MPI::MPI_CXX)

find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(LibArchive REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # yaml-cpp before 0.8 has the plain name
  add_library(yaml-cpp::yaml-cpp INTERFACE IMPORTED)
  target_link_libraries(yaml-cpp::yaml-cpp INTERFACE yaml-cpp)
endif()
find_package(Boost REQUIRED COMPONENTS program_options)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc i18n data)

find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(TRIREME_EDIT QUIET IMPORTED_TARGET libedit)  # without it trireme-generate has no line editing

# Without CLD2 `trireme-preprocess clean` cannot tell languages: it needs --language any.
find_path(TRIREME_CLD2_INCLUDE cld2/public/compact_lang_det.h)
find_library(TRIREME_CLD2_LIBRARY cld2)
if(TRIREME_CLD2_INCLUDE AND TRIREME_CLD2_LIBRARY)
  add_library(trireme_cld2 INTERFACE)
  target_include_directories(trireme_cld2 SYSTEM INTERFACE ${TRIREME_CLD2_INCLUDE})
  target_link_libraries(trireme_cld2 INTERFACE ${TRIREME_CLD2_LIBRARY})
endif()

# Without cpp-httplib there is no trireme-serve: Debian and Ubuntu ship it as a library, others as a header alone.
find_path(TRIREME_HTTPLIB_INCLUDE httplib.h)
find_library(TRIREME_HTTPLIB_LIBRARY cpp-httplib)
if(TRIREME_HTTPLIB_INCLUDE)
  add_library(trireme_httplib INTERFACE)
  target_include_directories(trireme_httplib SYSTEM INTERFACE ${TRIREME_HTTPLIB_INCLUDE})
  target_link_libraries(trireme_httplib INTERFACE Threads::Threads $<$<BOOL:${TRIREME_HTTPLIB_LIBRARY}>:${TRIREME_HTTPLIB_LIBRARY}>)
endif()

find_library(TRIREME_SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
find_library(TRIREME_SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train REQUIRED)
find_path(TRIREME_SENTENCEPIECE_INCLUDE sentencepiece_processor.h REQUIRED)
add_library(trireme_sentencepiece INTERFACE)
# The library does not tell its version; datasets record it, because unigram ids depend on it.
pkg_check_modules(TRIREME_SENTENCEPIECE_PC QUIET sentencepiece)
target_include_directories(trireme_sentencepiece SYSTEM INTERFACE ${TRIREME_SENTENCEPIECE_INCLUDE})
target_link_libraries(trireme_sentencepiece INTERFACE
  ${TRIREME_SENTENCEPIECE_TRAIN_LIBRARY} ${TRIREME_SENTENCEPIECE_LIBRARY})

find_library(TRIREME_OPENBLAS_LIBRARY openblas REQUIRED)
find_path(TRIREME_OPENBLAS_INCLUDE cblas.h REQUIRED
  PATH_SUFFIXES openblas openblas-pthread x86_64-linux-gnu/openblas-pthread x86_64-linux-gnu)
add_library(trireme_openblas INTERFACE)
target_include_directories(trireme_openblas SYSTEM INTERFACE ${TRIREME_OPENBLAS_INCLUDE})
target_link_libraries(trireme_openblas INTERFACE ${TRIREME_OPENBLAS_LIBRARY})

if(TRIREME_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()

include(TriremeCuda)
