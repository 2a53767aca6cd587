# quern_compile(target): the compile options of every target of this project.

# GCC 12 warns of each use of its own AVX-512 headers, which intentionally read undefined values (GCC bug 105593).
set(quern_avx512_warnings "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(quern_avx512_warnings -Wno-uninitialized -Wno-maybe-uninitialized)
endif()

set(quern_cpu_flags "")
if(QUERN_NATIVE)
  set(quern_cpu_flags -march=native ${quern_avx512_warnings})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(quern_cpu_flags -march=x86-64-v3) # AVX2 and FMA: Intel since 2013, AMD since 2015
endif()

# -ffp-contract stays at GCC's default, fast, which is nvcc's too: products and sums become fused
# multiply-adds, faster and rounded once less.

set(quern_warnings -Wall -Wextra)
set(quern_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)

# Warnings, sanitizers and definitions, without instruction-set flags.
function(quern_compile_portable target)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${quern_warnings}>")
  if(QUERN_WERROR)
    target_compile_options(
      ${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                        "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xcompiler=-Werror>")
  endif()
  target_compile_options(
    ${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;--expt-relaxed-constexpr;--extended-lambda>")
  if(QUERN_SANITIZE)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${quern_sanitizers}>")
    target_link_options(${target} PRIVATE ${quern_sanitizers})
  endif()
  # fmt and spdlog are used as headers only, so that no binary depends on their libraries' versions. A quick build
  # links the compiled libraries.
  target_compile_definitions(${target} PRIVATE SPDLOG_FMT_EXTERNAL)
  if(QUERN_QUICK)
    target_compile_definitions(${target} PRIVATE SPDLOG_COMPILED_LIB)
    target_link_libraries(${target} PRIVATE spdlog fmt)
  else()
    target_compile_definitions(${target} PRIVATE SPDLOG_HEADER_ONLY FMT_HEADER_ONLY)
  endif()
endfunction()

function(quern_compile target)
  quern_compile_portable(${target})
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${quern_cpu_flags}>")
  if(QUERN_UNITY OR QUERN_QUICK)
    quern_unity(${target})
  endif()
endfunction()
