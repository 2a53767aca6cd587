# Run at build time by the target quern_build_info; see BuildInfo.cmake.

set(COMMIT unknown)
find_program(git git)
if(git AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${git} describe --always --dirty --abbrev=10 --exclude=*
                  WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE text ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(NOT failed AND text)
    set(COMMIT ${text})
  endif()
  if(COMMIT MATCHES "-dirty$")  # builds of different changes get different names
    execute_process(COMMAND ${git} diff --no-ext-diff --no-textconv --no-color --full-index --binary HEAD COMMAND ${git} hash-object --stdin
                    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE changes ERROR_QUIET)
    string(SUBSTRING "${changes}" 0 10 changes)
    string(APPEND COMMIT -${changes})
  endif()
endif()
if(ARCHITECTURES STREQUAL "")
  set(CUDA "")
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/build_info_values.h.in ${OUTPUT} @ONLY)
