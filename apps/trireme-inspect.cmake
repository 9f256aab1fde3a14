trireme_app(trireme-inspect DEPENDS trireme::deck trireme::data trireme::checkpoint nlohmann_json::nlohmann_json Boost::program_options)
