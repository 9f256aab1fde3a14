# The few commands the build files use: one library per module, one program per main, one test program per module.

# Flags that every Trireme target compiles with. Designated initialisers may leave out what has a default.
add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers>
  $<$<COMPILE_LANGUAGE:CXX>:$<IF:$<BOOL:${TRIREME_WERROR}>,-Werror,-Werror=switch>>)  # each switch over an enum names every value
set(TRIREME_MARCH "")
if(TRIREME_ARCH AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(TRIREME_MARCH ${TRIREME_ARCH})
  target_compile_options(trireme_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${TRIREME_ARCH}>)
endif()
if(TRIREME_SANITIZE)
  # GCC 12 sees uninitialised values in the standard library's own headers once they are instrumented. Clang checks
  # what GCC checks: not function types, as NVML is called with handle types of our own, and not frames after return.
  target_compile_options(trireme_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer>
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=function -fsanitize-address-use-after-return=never>)
  target_link_options(trireme_flags INTERFACE -fsanitize=address,undefined)
  target_compile_definitions(trireme_flags INTERFACE TRIREME_SANITIZED)
endif()
target_link_options(trireme_flags INTERFACE -Wl,--build-id)  # by which ranks know one build from another

# What waits for people, files, the network or kernels, and has no loops over data: -O1 compiles it in two thirds of the time.
set(TRIREME_COMPILE_QUICKLY $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
# What calculates for seconds in tests: the sanitizers' build, which has no optimization, takes minutes for it.
set(TRIREME_OPTIMIZE_SANITIZED $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TRIREME_SANITIZE}>>:-O1>)

# trireme_module(NAME SOURCES... DEPENDS...): the static library trireme::NAME. A module links only the modules named in
# DEPENDS, all of them above it in the list of src/CMakeLists.txt, and includes no others: each has its own include path,
# a folder with one link to src/NAME.
function(trireme_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(trireme_${name} STATIC ${arg_SOURCES})
  add_library(trireme::${name} ALIAS trireme_${name})
  target_link_libraries(trireme_${name} PUBLIC trireme_flags ${arg_DEPENDS})
  set(include ${CMAKE_BINARY_DIR}/include/${name})
  file(MAKE_DIRECTORY ${include})
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/src/${name} ${include}/${name} SYMBOLIC)
  target_include_directories(trireme_${name} PUBLIC ${include})
endfunction()

# trireme_shared_module(NAME SOURCES... USES... LIBRARIES...): trireme::NAME as a shared library that programs find by
# their run path. It contains nothing of the modules in USES: the programs, which link them, provide their symbols.
function(trireme_shared_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;USES;LIBRARIES" ${ARGN})
  add_library(trireme_${name} SHARED ${arg_SOURCES})
  add_library(trireme::${name} ALIAS trireme_${name})
  set_property(TARGET trireme_${name} PROPERTY UNITY_BUILD OFF)
  target_link_libraries(trireme_${name} PRIVATE trireme_flags ${arg_LIBRARIES} INTERFACE ${arg_USES})
  foreach(used IN LISTS arg_USES)
    target_include_directories(trireme_${name} PRIVATE $<TARGET_PROPERTY:${used},INTERFACE_INCLUDE_DIRECTORIES>)
  endforeach()
  install(TARGETS trireme_${name} LIBRARY)
endfunction()

# trireme_app(NAME DEPENDS...): the program NAME from apps/NAME.cpp, which finds the headers of apps/common.
function(trireme_app name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  add_executable(${name} ${name}.cpp)
  target_compile_options(${name} PRIVATE ${TRIREME_COMPILE_QUICKLY})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/common)
  target_link_libraries(${name} PRIVATE trireme_flags trireme_version ${arg_DEPENDS})
  # A run path that libraries in ../lib are found by, too, which need others there.
  target_link_options(${name} PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS ${name} RUNTIME)
  set_property(GLOBAL APPEND PROPERTY TRIREME_PROGRAMS ${name})
endfunction()

# What Open MPI needs in containers, as root, and with more ranks than cores; without libraries of networks, one of which
# takes a quarter of a second to load.
set(TRIREME_MPI_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
  OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_pml=ob1)

# trireme_test(NAME SOURCES... DEPENDS... [RANKS n] [GPU] [SEPARATE] [LABELS...] [TIMEOUT s] [THREADS n]): the GoogleTest program test_NAME,
# run once as one CTest test; under mpirun on n ranks when RANKS is given (label mpi), alone otherwise (label unit).
# With SEPARATE its files are always compiled one by one, as they use the same names for different things.
# With GPU every rank needs a GPU (label gpu), and the test is reported as skipped where there are fewer.
# Each has its own folder for Open MPI's sessions: 4.1 removes a shared one at the end of a test while another starts.
function(trireme_test name)
  cmake_parse_arguments(arg "GPU;SEPARATE" "RANKS;TIMEOUT;THREADS" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT TARGET test_${name})
    add_executable(test_${name} ${arg_SOURCES})
    target_link_libraries(test_${name} PRIVATE trireme_flags ${arg_DEPENDS} GTest::gtest)
    if(arg_SEPARATE)
      set_property(TARGET test_${name} PROPERTY UNITY_BUILD OFF)
    endif()
    # Most tests take longer to compile than to run.
    target_compile_options(test_${name} PRIVATE ${TRIREME_COMPILE_QUICKLY})
    target_compile_definitions(test_${name} PRIVATE
      TRIREME_SOURCE_DIR="${CMAKE_SOURCE_DIR}" TRIREME_BINARY_DIR="${CMAKE_BINARY_DIR}")
    if(arg_GPU AND arg_RANKS)
      target_link_libraries(test_${name} PRIVATE trireme_gpu_mpi_test_main)
    elseif(arg_GPU)
      target_link_libraries(test_${name} PRIVATE trireme_gpu_test_main)
    elseif(arg_RANKS)
      target_link_libraries(test_${name} PRIVATE trireme_mpi_test_main)
    else()
      target_link_libraries(test_${name} PRIVATE GTest::gtest_main)
    endif()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 600)  # a test that takes as long hangs, also on a slow and busy machine
  endif()
  if(arg_GPU)
    list(APPEND arg_LABELS gpu)
  endif()
  if(arg_RANKS)
    set(test ${name}_${arg_RANKS}_ranks)
    add_test(NAME ${test} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none
             ${MPIEXEC_NUMPROC_FLAG} ${arg_RANKS} $<TARGET_FILE:test_${name}>)
    list(APPEND arg_LABELS mpi)
    set(processors ${arg_RANKS})
    if(processors GREATER 2)
      set(processors 2)
    endif()
  else()
    set(test ${name})
    add_test(NAME ${test} COMMAND test_${name})
    if(NOT arg_LABELS)
      set(arg_LABELS unit)
      add_dependencies(unit_tests test_${name})
    endif()
    set(processors 1)
  endif()
  if(arg_GPU)
    set_tests_properties(${test} PROPERTIES SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
  endif()
  set_tests_properties(${test} PROPERTIES
    LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} PROCESSORS ${processors}
    ENVIRONMENT "${TRIREME_MPI_ENVIRONMENT};OMPI_MCA_orte_tmpdir_base=${CMAKE_BINARY_DIR}/tests/sessions/${test}")
endfunction()

function(trireme_print_summary)
  message(STATUS "")
  message(STATUS "Trireme ${PROJECT_VERSION}")
  message(STATUS "  build type       ${CMAKE_BUILD_TYPE}")
  message(STATUS "  compiler         ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, -march=${TRIREME_MARCH}")
  message(STATUS "  MPI              ${MPI_CXX_VERSION} (${MPIEXEC_EXECUTABLE})")
  message(STATUS "  HDF5             ${HDF5_VERSION}, parallel: ${HDF5_IS_PARALLEL}")
  message(STATUS "  OpenBLAS         ${TRIREME_OPENBLAS_LIBRARY}")
  message(STATUS "  SentencePiece    ${TRIREME_SENTENCEPIECE_LIBRARY}")
  message(STATUS "  yaml-cpp ${yaml-cpp_VERSION}, Boost ${Boost_VERSION_STRING}, fmt ${fmt_VERSION}, nlohmann-json ${nlohmann_json_VERSION}")
  message(STATUS "  libedit          ${TRIREME_EDIT_VERSION}")
  if(TRIREME_HTTPLIB_INCLUDE)
    message(STATUS "  cpp-httplib      ${TRIREME_HTTPLIB_INCLUDE}/httplib.h")
  else()
    message(STATUS "  cpp-httplib      not found: trireme-serve is not built (Debian, Ubuntu: libcpp-httplib-dev)")
  endif()
  message(STATUS "  backends         ${TRIREME_BACKENDS}")
  message(STATUS "")
endfunction()
