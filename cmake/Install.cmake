# cmake --install: the program, the headers, the static libraries, and find_package(Quern).

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(quern_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Quern)

install(TARGETS quern_library ${quern_folders} EXPORT QuernTargets)
install(EXPORT QuernTargets NAMESPACE Quern:: DESTINATION ${quern_config_dir})
install(DIRECTORY src/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quern
        FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
configure_package_config_file(cmake/QuernConfig.cmake.in ${PROJECT_BINARY_DIR}/QuernConfig.cmake
                              INSTALL_DESTINATION ${quern_config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/QuernConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/QuernConfig.cmake ${PROJECT_BINARY_DIR}/QuernConfigVersion.cmake
        DESTINATION ${quern_config_dir})
if(TARGET quern)
  install(TARGETS quern)
endif()
