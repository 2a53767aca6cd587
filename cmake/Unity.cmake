# quern_unity(target): its sources compile in a few groups, each as one file, so that headers are read and templates
# instantiated once a group. Sources with options of their own stay alone. cmake/unity_groups.py chooses the groups.

set(QUERN_UNITY_LINES 2500 CACHE STRING "Lines of a group of sources that compile as one file, at most")
set(QUERN_UNITY_EXCEPT "" CACHE STRING "Targets whose sources compile one by one")
mark_as_advanced(QUERN_UNITY_LINES QUERN_UNITY_EXCEPT)

find_program(QUERN_PYTHON python3)
mark_as_advanced(QUERN_PYTHON)

function(quern_unity target)
  if(target IN_LIST QUERN_UNITY_EXCEPT)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(TRANSFORM sources PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" REGEX "^[^/]")
  execute_process(
    COMMAND ${QUERN_PYTHON} cmake/unity_groups.py src:tests:apps ${QUERN_UNITY_LINES} ${sources}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  set(before "#define QUERN_PASTE(a, b) a##b\n#define QUERN_OWN(name, file) QUERN_PASTE(name, file)\n")
  set(after "#undef QUERN_PASTE\n#undef QUERN_OWN\n")
  string(REGEX MATCHALL "[^\n]+" lines "${lines}")
  foreach(line IN LISTS lines)
    if(line MATCHES "^own (.*)")
      string(APPEND before "#define ${CMAKE_MATCH_1} QUERN_OWN(${CMAKE_MATCH_1}, QUERN_FILE)\n")
      string(APPEND after "#undef ${CMAKE_MATCH_1}\n")
    elseif(line MATCHES "^([^ ]+) (.*)")
      set_source_files_properties(${CMAKE_MATCH_2} PROPERTIES UNITY_GROUP ${CMAKE_MATCH_1})
    endif()
  endforeach()
  set_target_properties(
    ${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP UNITY_BUILD_UNIQUE_ID QUERN_FILE
                         UNITY_BUILD_CODE_BEFORE_INCLUDE "${before}" UNITY_BUILD_CODE_AFTER_INCLUDE "${after}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU") # it takes the sources that such a file includes for headers
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources}) # the groups depend on the names in them
endfunction()
