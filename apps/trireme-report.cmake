trireme_app(trireme-report DEPENDS trireme::deck trireme::report Boost::program_options)
