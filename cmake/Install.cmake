# cmake --install and CPack: the program with recipes and docs; the library with headers and find_package(megatron).
set(CMAKE_INSTALL_LIBDIR lib)  # whatever the prefix: the program finds the CUDA plugin in ../lib/megatron
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # tests are not installed: `make install` builds the program, and with it the library
option(MEGATRON_BUNDLE_LIBTORCH "Install libtorch's libraries too, into lib/megatron/torch/lib" OFF)

# libtorch: beside us where it is bundled or linked to, else where the build found it.
set(torch_here ${CMAKE_INSTALL_LIBDIR}/megatron/torch)
set_target_properties(megatron-torch PROPERTIES INSTALL_RPATH "$ORIGIN/torch/lib;${TORCH_DIR_FOUND}/lib")
install(TARGETS megatron RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(TARGETS megatron-torch RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR}/megatron COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/shims DESTINATION ${CMAKE_INSTALL_DATADIR}/megatron COMPONENT program
  USE_SOURCE_PERMISSIONS FILES_MATCHING PATTERN "*.py" PATTERN __pycache__ EXCLUDE)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/megatron COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples/launch DESTINATION ${CMAKE_INSTALL_DATADIR}/megatron/examples
  USE_SOURCE_PERMISSIONS COMPONENT program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program
  FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN decisions EXCLUDE)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
if(TARGET megatron_cuda)
  set_target_properties(megatron_cuda PROPERTIES INSTALL_RPATH "$ORIGIN/torch/lib;${TORCH_DIR_FOUND}/lib")
  install(TARGETS megatron_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/megatron COMPONENT program)
endif()
if(MEGATRON_BUNDLE_LIBTORCH)  # those that the program needs: libtorch_cpu looks for the others beside itself
  file(GLOB torch_libraries ${TORCH_DIR_FOUND}/lib/libtorch_cpu.so ${TORCH_DIR_FOUND}/lib/libc10.so
    ${TORCH_DIR_FOUND}/lib/libgomp.so.1 ${TORCH_DIR_FOUND}/../nvidia/*/lib/libcudart.so.*
    ${TORCH_DIR_FOUND}/../nvidia/*/lib/libcupti.so.*)
  install(FILES ${torch_libraries} DESTINATION ${torch_here}/lib COMPONENT program)
endif()

# The headers of the titles in docs/tour.md and those of run/, with what they include.
file(STRINGS ${PROJECT_SOURCE_DIR}/docs/tour.md tour ENCODING UTF-8 REGEX "^\\*\\*[0-9]+\\. ")
string(REGEX MATCHALL "`[a-z_0-9/]+\\.h`" public_headers "${tour}")
string(REPLACE "`" "" public_headers "${public_headers}")
file(GLOB run_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/src/megatron ${PROJECT_SOURCE_DIR}/src/megatron/run/*.h)
set(waiting ${public_headers} ${run_headers} generate/generate.h text/texts.h base/version.h)
set(headers)
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST headers)
    continue()
  endif()
  list(APPEND headers ${header})
  file(STRINGS ${PROJECT_SOURCE_DIR}/src/megatron/${header} includes REGEX "^#include \"megatron/")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/megatron/${header})
  list(TRANSFORM includes REPLACE "^#include \"megatron/([^\"]+)\".*" "\\1")
  list(APPEND waiting ${includes})
endwhile()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/tour.md)
foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/src/megatron/${header}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/megatron/${folder} COMPONENT development)
endforeach()

# The archives, without debug information, which names the folders of this machine.
get_property(folders GLOBAL PROPERTY MEGATRON_FOLDERS)  # whoever needs another comes after it
set(archives)
foreach(folder version ${folders})
  install(TARGETS megatron_${folder} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/megatron COMPONENT development)
  list(APPEND archives libmegatron_${folder}.a)
endforeach()
list(REVERSE archives)
install(CODE "file(GLOB archives \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/megatron/libmegatron_*.a\")
  execute_process(COMMAND ${CMAKE_STRIP} --strip-debug \${archives} COMMAND_ERROR_IS_FATAL ANY)" COMPONENT development)

string(REPLACE ";" "\n    " archive_lines "${archives}")
set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/megatron)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/megatronConfig.cmake.in
  ${PROJECT_BINARY_DIR}/megatronConfig.cmake INSTALL_DESTINATION ${config_folder} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# The headers may change between minor versions (docs/embedding.md).
write_basic_package_version_file(${PROJECT_BINARY_DIR}/megatronConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/megatronConfig.cmake ${PROJECT_BINARY_DIR}/megatronConfigVersion.cmake
  DESTINATION ${config_folder} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DATADIR}/megatron COMPONENT development
  PATTERN launch EXCLUDE)

# Packages: megatron-cpp holds the program, libmegatron-dev the library.
foreach(package megatron-cpp libmegatron-dev)
  set(component program)
  if(package STREQUAL libmegatron-dev)
    set(component development)
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
    COMPONENT ${component} RENAME copyright)
endforeach()
set(CPACK_PACKAGE_NAME megatron-cpp)
set(CPACK_PACKAGE_VENDOR "The megatron-cpp authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains and runs GPTs, BERTs and T5s over many ranks, on libtorch")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_RESOURCE_FILE_README ${PROJECT_SOURCE_DIR}/README.md)
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${CPACK_PACKAGE_VENDOR})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME megatron-cpp)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)  # of all but libtorch, which is in no Debian package
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TORCH_DIR_FOUND}/lib)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "The program and its recipes. Needs libtorch 2.11.0: docs/embedding.md says where it looks for it.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libmegatron-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
# What find_package(megatron) looks for and the archives are linked with.
file(STRINGS ${PROJECT_SOURCE_DIR}/scripts/packages.txt wanted REGEX "-dev$")
list(FILTER wanted EXCLUDE REGEX "benchmark|gtest|gmock|gloo|fmt")
list(JOIN wanted ", " wanted)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "cmake, pkg-config, ${wanted}")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "The library: headers, static archives, find_package(megatron) and examples.")
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/Package.cmake)
set(CPACK_MEGATRON_TORCH_DIR ${TORCH_DIR_FOUND})
include(CPack)
