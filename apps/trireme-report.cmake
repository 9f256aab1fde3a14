trireme_app(trireme-report DEPENDS trireme::report Boost::program_options)
