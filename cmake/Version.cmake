# The program's version with the commit that it was built from, where it is built in a git checkout. Run as a script by
# every build; what the compiler sees is written again only where it has changed:
#   cmake -DVERSION=0.2.0 -DTORCH_VERSION=2.11.0 -DOUTPUT=build/version.cpp -P cmake/Version.cmake      in the source folder

if(NOT CMAKE_SCRIPT_MODE_FILE)
  add_custom_target(megatron_commit BYPRODUCTS ${PROJECT_BINARY_DIR}/version.cpp WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMAND ${CMAKE_COMMAND} -DVERSION=${PROJECT_VERSION} -DTORCH_VERSION=${TORCH_VERSION} -DOUTPUT=${PROJECT_BINARY_DIR}/version.cpp
            -P ${CMAKE_CURRENT_LIST_FILE})
  add_library(megatron_version STATIC ${PROJECT_BINARY_DIR}/version.cpp)
  add_dependencies(megatron_version megatron_commit)
  target_link_libraries(megatron_version PRIVATE megatron_warnings megatron_base)
  return()
endif()

set(ENV{GIT_OPTIONAL_LOCKS} 0)
execute_process(COMMAND git describe --always --dirty=.changed --abbrev=12 --exclude=* OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(commit)
  set(commit "+${commit}")
endif()
set(text "#include \"megatron/base/version.h\"\n
const char* megatron::program_version() { return \"${VERSION}${commit}\"; }
const char* megatron::libtorch_version() { return \"${TORCH_VERSION}\"; }\n")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
