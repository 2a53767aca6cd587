# cmake --install: the program with completions and man page (the component `program`, which a package holds), the
# headers, the static libraries, and find_package(Quern).

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(quern_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Quern)

install(TARGETS quern_core quern_library ${quern_folders} EXPORT QuernTargets)
install(EXPORT QuernTargets NAMESPACE Quern:: DESTINATION ${quern_config_dir})
# Headers include each other as "nn/linear.h" in src/, and as "quern/nn/linear.h" once installed: a user's include path
# gets one name, quern/.
string(REPLACE "quern_" "" rooms "${quern_folders}")
string(REPLACE ";" "|" rooms "${rooms}")
install(CODE "
  file(GLOB_RECURSE headers RELATIVE \"${PROJECT_SOURCE_DIR}/src\" \"${PROJECT_SOURCE_DIR}/src/*.h\"
       \"${PROJECT_SOURCE_DIR}/src/*.cuh\")
  foreach(header IN LISTS headers)
    file(READ \"${PROJECT_SOURCE_DIR}/src/\${header}\" text)
    string(REGEX REPLACE \"#include \\\"(${rooms})/\" \"#include \\\"quern/\\\\1/\" text \"\${text}\")
    file(WRITE \"${PROJECT_BINARY_DIR}/installed_headers/quern/\${header}\" \"\${text}\")
  endforeach()")
install(DIRECTORY ${PROJECT_BINARY_DIR}/installed_headers/quern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
configure_package_config_file(cmake/QuernConfig.cmake.in ${PROJECT_BINARY_DIR}/QuernConfig.cmake
                              INSTALL_DESTINATION ${quern_config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/QuernConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/QuernConfig.cmake ${PROJECT_BINARY_DIR}/QuernConfigVersion.cmake
        DESTINATION ${quern_config_dir})
if(TARGET quern)
  install(TARGETS quern COMPONENT program)
  # The program prints these itself.
  set(printed ${PROJECT_BINARY_DIR}/printed)
  install(CODE "
    file(MAKE_DIRECTORY \"${printed}\")
    foreach(pair \"quern completion bash\" \"_quern completion zsh\" \"quern.fish completion fish\" \"quern.1 help --man\")
      separate_arguments(words UNIX_COMMAND \"\${pair}\")
      list(POP_FRONT words file)
      execute_process(COMMAND \"$<TARGET_FILE:quern>\" \${words} OUTPUT_FILE \"${printed}/\${file}\"
                      COMMAND_ERROR_IS_FATAL ANY)
    endforeach()" COMPONENT program)
  set(share ${CMAKE_INSTALL_DATADIR})
  install(FILES ${printed}/quern DESTINATION ${share}/bash-completion/completions COMPONENT program)
  install(FILES ${printed}/_quern DESTINATION ${share}/zsh/site-functions COMPONENT program)
  install(FILES ${printed}/_quern DESTINATION ${share}/zsh/vendor-completions COMPONENT program) # where Debian's zsh looks
  install(FILES ${printed}/quern.fish DESTINATION ${share}/fish/vendor_completions.d COMPONENT program)
  install(FILES ${printed}/quern.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
  install(FILES LICENSE README.md DESTINATION ${share}/doc/quern COMPONENT program)
  install(DIRECTORY configs DESTINATION ${share}/quern COMPONENT program)
  if(PROJECT_IS_TOP_LEVEL) # another project makes its own packages
    include(cmake/Package.cmake)
  endif()
endif()
