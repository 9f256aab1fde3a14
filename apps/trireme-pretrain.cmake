trireme_app(trireme-pretrain DEPENDS trireme::train trireme::convert Boost::program_options)
target_sources(trireme-pretrain PRIVATE pretrain/console.cpp)
target_include_directories(trireme-pretrain PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
