trireme_app(trireme-plan DEPENDS trireme::plan trireme::report nlohmann_json::nlohmann_json Boost::program_options)
target_sources(trireme-plan PRIVATE plan/output.cpp)
target_include_directories(trireme-plan PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
