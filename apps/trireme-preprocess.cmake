trireme_app(trireme-preprocess DEPENDS trireme::data trireme::tokenizer Boost::program_options)
target_sources(trireme-preprocess PRIVATE preprocess/encode.cpp preprocess/merge.cpp preprocess/split.cpp)
target_include_directories(trireme-preprocess PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
