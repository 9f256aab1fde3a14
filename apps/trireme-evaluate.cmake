trireme_app(trireme-evaluate
  DEPENDS trireme::train trireme::evaluate nlohmann_json::nlohmann_json Boost::program_options)
target_sources(trireme-evaluate PRIVATE evaluate/results.cpp)
target_include_directories(trireme-evaluate PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
