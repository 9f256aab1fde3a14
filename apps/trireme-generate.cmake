trireme_app(trireme-generate
  DEPENDS trireme::generate trireme::plan nlohmann_json::nlohmann_json Boost::program_options)
