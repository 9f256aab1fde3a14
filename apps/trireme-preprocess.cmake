trireme_app(trireme-preprocess DEPENDS trireme::tokenizer Boost::program_options)
