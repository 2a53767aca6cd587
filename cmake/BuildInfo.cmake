# generated/build_info_values.h: the values that src/base/build_info.cpp reports. Every build looks up the
# git commit, but writes the file only when it changes.

string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
string(JOIN " " quern_flags ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}} ${quern_cpu_flags})
if(QUERN_SANITIZE)
  string(APPEND quern_flags " -fsanitize=address,undefined")
endif()
set(quern_generated ${PROJECT_BINARY_DIR}/generated)
string(REPLACE ";" " " quern_architectures "${CMAKE_CUDA_ARCHITECTURES}")

add_custom_target(
  quern_build_info
  COMMAND
    ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUTPUT=${quern_generated}/build_info_values.h
    -DVERSION=${PROJECT_VERSION} "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    "-DCUDA=${quern_cuda_version}" "-DARCHITECTURES=${quern_architectures}" "-DFLAGS=${quern_flags}"
    -DBUILD_TYPE=${CMAKE_BUILD_TYPE} -P ${PROJECT_SOURCE_DIR}/cmake/write_build_info.cmake
  BYPRODUCTS ${quern_generated}/build_info_values.h
  COMMENT "" VERBATIM)
