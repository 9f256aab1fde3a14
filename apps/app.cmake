# What every program of this folder is compiled with.
add_compile_definitions(TRIREME_VERSION="${PROJECT_VERSION}")
