# Writes OUTPUT, a header that defines TRIREME_COMMIT: the commit of SOURCE, 12 digits, with a "+" if tracked files
# differ from it; "unknown" without git. The file keeps its time stamp if its text does not change, so that nothing is
# compiled again.
set(commit unknown)
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --dirty=+ --abbrev=12 --exclude=*
                  WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE found ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(found)
    set(commit ${found})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\n#define TRIREME_COMMIT \"${commit}\"\n")
