trireme_app(trireme-convert DEPENDS trireme::convert Boost::program_options)
