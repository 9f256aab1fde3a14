trireme_app(trireme-report DEPENDS trireme::report Boost::program_options)
target_sources(trireme-report PRIVATE report/follow.cpp report/runs.cpp)
target_include_directories(trireme-report PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
