trireme_app(trireme-evaluate
  DEPENDS trireme::train trireme::evaluate nlohmann_json::nlohmann_json Boost::program_options)
