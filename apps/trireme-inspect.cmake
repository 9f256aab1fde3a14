trireme_app(trireme-inspect DEPENDS trireme::data trireme::checkpoint nlohmann_json::nlohmann_json Boost::program_options)
