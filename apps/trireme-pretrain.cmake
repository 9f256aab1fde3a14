trireme_app(trireme-pretrain DEPENDS trireme::train Boost::program_options)
