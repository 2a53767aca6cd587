# cpack -G DEB: a package of the component `program`, which compiles nothing.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME quern)
set(CPACK_PACKAGE_CONTACT "The Quern authors <quern@example.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_COMPONENTS_ALL program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME quern)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_STRIP_FILES ON)
find_program(QUERN_SHLIBDEPS dpkg-shlibdeps)
find_program(QUERN_FILE file) # CPack needs it, and dpkg-shlibdeps
mark_as_advanced(QUERN_SHLIBDEPS QUERN_FILE)
if(QUERN_SHLIBDEPS AND QUERN_FILE)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  # CUDA's libraries are often installed without packages, so the package does not depend on them.
  if(quern_with_cuda)
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CUDAToolkit_LIBRARY_DIR}")
  endif()
endif()
include(CPack)
