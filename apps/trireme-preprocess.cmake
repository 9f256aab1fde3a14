trireme_app(trireme-preprocess DEPENDS trireme::data trireme::tokenizer Boost::program_options)
