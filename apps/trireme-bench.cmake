trireme_app(trireme-bench DEPENDS trireme::train trireme::generate trireme::device Boost::program_options
            nlohmann_json::nlohmann_json)
target_sources(trireme-bench PRIVATE bench/burn_in.cpp bench/comm.cpp bench/generate.cpp bench/gemm.cpp bench/kernels.cpp bench/layer_rows.cpp
               bench/passes.cpp bench/profile.cpp bench/step.cpp bench/meters.cpp)
target_include_directories(trireme-bench PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
