trireme_app(trireme-tokenizer DEPENDS trireme::deck trireme::tokenizer Boost::program_options)
