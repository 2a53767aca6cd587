# The libraries that Quern is built with, all from the system's packages.

# quern_need(package debian-package): find_package, or a sentence that says what to install.
function(quern_need package debian)
  find_package(${package} QUIET ${ARGN})
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} was not found. On Debian and Ubuntu: apt install ${debian}")
  endif()
endfunction()

# The same for a library of headers that has no CMake package everywhere.
function(quern_need_header header debian)
  string(MAKE_C_IDENTIFIER "QUERN_HEADER_${header}" variable)
  find_path(${variable} ${header})
  mark_as_advanced(${variable})
  if(NOT ${variable})
    message(FATAL_ERROR "<${header}> was not found. On Debian and Ubuntu: apt install ${debian}")
  endif()
endfunction()

quern_need(Threads libc6-dev)
quern_need(Eigen3 libeigen3-dev NO_MODULE)
quern_need(nlohmann_json nlohmann-json3-dev)
quern_need_header(spdlog/spdlog.h libspdlog-dev)
quern_need_header(fmt/format.h libfmt-dev)
quern_need_header(toml++/toml.h libtomlplusplus-dev)
quern_need_header(xxhash.h libxxhash-dev)
if(QUERN_TESTS)
  quern_need(GTest libgtest-dev)
endif()
if(QUERN_BLAS)
  quern_need(BLAS libopenblas-dev)
endif()
