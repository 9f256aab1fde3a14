trireme_app(trireme-preprocess DEPENDS trireme::deck trireme::corpus trireme::data trireme::tokenizer Boost::program_options)
target_sources(trireme-preprocess PRIVATE preprocess/corpus_commands.cpp)
target_include_directories(trireme-preprocess PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
