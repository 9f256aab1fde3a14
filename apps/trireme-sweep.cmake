trireme_app(trireme-sweep DEPENDS trireme::sweep Boost::program_options)
add_dependencies(trireme-sweep trireme-pretrain)  # which it starts
