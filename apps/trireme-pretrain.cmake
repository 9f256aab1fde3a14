trireme_app(trireme-pretrain DEPENDS trireme::train trireme::convert Boost::program_options)
