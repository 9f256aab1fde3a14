if(TARGET trireme::serve)
  trireme_app(trireme-serve DEPENDS trireme::serve trireme::train trireme::plan Boost::program_options)
endif()
