# make install PREFIX=…, make package: the program, and the library as one archive with its headers, which
# find_package(megatron) finds.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# One archive of all folders: their order in a link is then nobody's business.
get_property(folders GLOBAL PROPERTY MEGATRON_FOLDERS)
set(parts "")
set(script "CREATE ${CMAKE_BINARY_DIR}/lib/libmegatron.a\n")
foreach(folder ${folders} version)
  list(APPEND parts megatron_${folder})
  string(APPEND script "ADDLIB $<TARGET_FILE:megatron_${folder}>\n")
endforeach()
string(APPEND script "SAVE\nEND\n")
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/megatron.mri CONTENT "${script}")
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/lib/libmegatron.a DEPENDS ${parts} ${CMAKE_BINARY_DIR}/megatron.mri
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/lib
  COMMAND ${CMAKE_COMMAND} -E rm -f ${CMAKE_BINARY_DIR}/lib/libmegatron.a
  COMMAND sh -c "${CMAKE_AR} -M <${CMAKE_BINARY_DIR}/megatron.mri" COMMENT "libmegatron.a" VERBATIM)
add_custom_target(megatron_archive ALL DEPENDS ${CMAKE_BINARY_DIR}/lib/libmegatron.a)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/megatron)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/megatron-config.cmake.in ${CMAKE_BINARY_DIR}/megatron-config.cmake
  INSTALL_DESTINATION ${config_folder} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/megatron-config-version.cmake COMPATIBILITY SameMinorVersion)

# libtorch stays where it is: the installed program finds it there.
set_target_properties(megatron PROPERTIES INSTALL_RPATH ${TORCH_DIR_FOUND}/lib INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS megatron)
if(TARGET megatron_cuda)
  set_target_properties(megatron_cuda PROPERTIES INSTALL_RPATH ${TORCH_DIR_FOUND}/lib INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS megatron_cuda DESTINATION ${CMAKE_INSTALL_BINDIR})  # found beside the program
endif()
install(FILES ${CMAKE_BINARY_DIR}/lib/libmegatron.a DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/src/megatron DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  PATTERN "*.def" PATTERN "cpu" EXCLUDE PATTERN "cuda" EXCLUDE PATTERN "*-inl.h" EXCLUDE)
install(FILES ${CMAKE_BINARY_DIR}/megatron-config.cmake ${CMAKE_BINARY_DIR}/megatron-config-version.cmake
  DESTINATION ${config_folder})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/megatron)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR "TGZ;DEB")
set(CPACK_PACKAGE_NAME megatron-cpp)
set(CPACK_PACKAGE_CONTACT "The megatron-cpp authors <megatron-cpp@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Megatron-LM as a C++ program and library")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS OFF)  # libtorch, the largest of them, comes from PyPI
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
include(CPack)
