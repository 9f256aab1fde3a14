trireme_app(trireme-tokenizer DEPENDS trireme::tokenizer Boost::program_options)
