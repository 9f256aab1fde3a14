# What an installation has in addition to the programs, and how packages are made:
#   cmake --install build/release --prefix DIR      cmake --build build/release --target uninstall
#   cd build/release && cpack -G DEB                cd build/release && cpack -G TGZ
# The .deb depends on the distribution's libraries; the .tar.gz contains them, except for MPI, the C library
# and the GPU's driver and toolkit, which are the cluster's.
include(GNUInstallDirs)
set(share ${CMAKE_INSTALL_DATADIR}/trireme)

# ---- programs that have been added, each with what its manual page says
set(trireme_descriptions
  "trireme-bench|measures GEMMs, operations, collectives and training steps"
  "trireme-convert|converts launch scripts, checkpoints and models of other programs"
  "trireme-evaluate|scores a checkpoint on data, texts and tasks"
  "trireme-generate|continues texts with the model of a checkpoint"
  "trireme-inspect|shows what checkpoints and datasets contain"
  "trireme-plan|searches the fastest layout of a run on a cluster"
  "trireme-preprocess|tokenizes texts into datasets"
  "trireme-pretrain|trains the model that a deck describes"
  "trireme-report|follows, summarizes, plots and compares runs"
  "trireme-serve|answers requests over HTTP with the model of a checkpoint"
  "trireme-sweep|trains the runs of a deck's sweep"
  "trireme-tokenizer|encodes and decodes texts, trains tokenizers")

set(pages ${CMAKE_BINARY_DIR}/man)
set(writer ${CMAKE_SOURCE_DIR}/cmake/install/write_man_page.sh)
set(page_files "")
file(MAKE_DIRECTORY ${pages})
get_property(programs GLOBAL PROPERTY TRIREME_PROGRAMS)
foreach(program IN LISTS programs)
  set(description ${trireme_descriptions})
  list(FILTER description INCLUDE REGEX "^${program}\\|")
  if(NOT description)
    message(FATAL_ERROR "${CMAKE_CURRENT_LIST_FILE} has no description of ${program}")
  endif()
  string(REGEX REPLACE "^.*\\|" "" description "${description}")
  add_custom_command(OUTPUT ${pages}/${program}.1
    COMMAND ${writer} ${PROJECT_VERSION} $<TARGET_FILE:${program}> "${description}" > ${pages}/${program}.1
    DEPENDS ${program} ${writer} COMMENT "" VERBATIM)
  list(APPEND page_files ${pages}/${program}.1)
  install(FILES ${pages}/${program}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES cmake/install/completion.bash RENAME ${program}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endforeach()
add_custom_command(OUTPUT ${pages}/trireme-deck.5
  COMMAND ${writer} ${PROJECT_VERSION} --deck $<TARGET_FILE:trireme-pretrain> > ${pages}/trireme-deck.5
  DEPENDS trireme-pretrain ${writer} COMMENT "" VERBATIM)
add_custom_target(manual_pages ALL DEPENDS ${page_files} ${pages}/trireme-deck.5)
install(FILES ${pages}/trireme-deck.5 DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)

# ---- decks, jobs, documents
install(DIRECTORY inputs jobs DESTINATION ${share} USE_SOURCE_PERMISSIONS
  PATTERN local EXCLUDE PATTERN container EXCLUDE)  # which need the source tree
install(FILES README.md CHANGELOG.md LICENSE src/report/third_party/uPlot.LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(page apps apps/bench src tests)
  install(FILES ${page}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR}/${page})
endforeach()

add_custom_target(uninstall
  COMMAND ${CMAKE_COMMAND} -DMANIFEST=${CMAKE_BINARY_DIR}/install_manifest.txt
          -P ${CMAKE_SOURCE_DIR}/cmake/install/uninstall.cmake
  COMMENT "Removing what was installed")

# ---- packages
# The tarball's libraries: all that the programs load but those of the cluster.
install(SCRIPT cmake/install/copy_libraries.cmake COMPONENT libraries EXCLUDE_FROM_ALL)

set(CPACK_PACKAGE_NAME trireme)
set(CPACK_PACKAGE_VENDOR "Trireme's developers")
set(CPACK_PACKAGE_CONTACT "Trireme's developers <trireme@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "pretrains transformers on CPU and GPU ranks of MPI")
set(CPACK_PACKAGE_DESCRIPTION
  "Trireme pretrains transformers with tensor, pipeline and data parallelism as one native program: a YAML deck\n describes a run, mpirun or srun starts its ranks, checkpoints are HDF5.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME trireme-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_THREADS 0)
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/install/cpack_options.cmake)
include(CPack)
