trireme_app(trireme-generate
  DEPENDS trireme::train trireme::generate trireme::plan nlohmann_json::nlohmann_json Boost::program_options)
if(TRIREME_EDIT_FOUND)
  target_link_libraries(trireme-generate PRIVATE PkgConfig::TRIREME_EDIT)
  target_compile_definitions(trireme-generate PRIVATE TRIREME_WITH_EDIT)
endif()
target_sources(trireme-generate PRIVATE generate/texts.cpp)
target_include_directories(trireme-generate PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
