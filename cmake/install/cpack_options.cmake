# Read by cpack for each kind of package: an archive gets the libraries and no prefix, since it is unpacked anywhere.
if(CPACK_GENERATOR STREQUAL "TGZ")
  list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build)
  set(CPACK_INSTALL_CMAKE_PROJECTS "${build};trireme;ALL;/;${build};trireme;libraries;/")
  set(CPACK_PACKAGING_INSTALL_PREFIX /)
endif()
